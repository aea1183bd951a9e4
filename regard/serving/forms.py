"""What a request says, in whichever way it says it: JSON, a form, a multipart form, or the query of its address."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import parse_qsl

from fastapi import Request
from pydantic import BaseModel, ValidationError
from starlette.datastructures import UploadFile

from regard.data.text import NO_TEXT
from regard.serving.errors import RefusalError

FIELDS = 100  # of a form; no request has as many
M = TypeVar("M", bound=BaseModel)


async def read(request: Request, model: type[M]) -> M:
    """The fields of a request; those of its body go before those of its query."""
    query = dict(reversed(_pairs(request.url.query, "the query")))
    body = await request.body()
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if not body:
        return checked(model, query, typed=False)
    text = _text(body)
    if kind == "application/x-www-form-urlencoded":
        fields = dict(reversed(_pairs(text, "the form")))  # the first of a name counts
        return checked(model, query | fields, typed=False)
    if kind == "multipart/form-data":
        return checked(model, query | await _multipart(request, len(body)), typed=False)
    if kind in ("", "application/json"):
        return checked(model, query | json_object(text), typed=True)
    raise RefusalError(400, f"Invalid request: a body of type {kind[:50]!r}; send JSON or a form")


def json_object(body: str | bytes) -> dict[str, Any]:
    """What a body of JSON says."""
    try:
        fields = json.loads(body, parse_float=_number)
    except (ValueError, RecursionError):
        raise RefusalError(400, "Invalid request: the body is not JSON") from None
    if not isinstance(fields, dict):
        raise RefusalError(400, "Invalid request: the body is not a JSON object")
    return fields


def checked(model: type[M], fields: dict[str, Any], *, typed: bool) -> M:
    """Fields as a model has them; `typed`: a number is a number, while in a form all is text."""
    try:
        return model.model_validate(fields, strict=typed)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        name = str(first["loc"][0]) if first["loc"] else ""
        message = f"missing {name} parameter" if first["type"] == "missing" else f"{name}: {first['msg']}"
        raise RefusalError(400, f"Invalid request: {message}", param=name) from None


def admitted(texts: Sequence[str], limit: int, name: str = "q") -> int:
    """How many characters there are, if they are not too many and all are text: JSON can spell half of one."""
    size = sum(map(len, texts))
    if size > limit:
        message = f"Invalid request: request ({size}) exceeds text limit ({limit})"
        raise RefusalError(400, message, reason="size", param=name)
    if any(NO_TEXT.search(text) for text in texts):
        message = f"Invalid request: {name} has a character that is no text (a null, or half a surrogate pair)"
        raise RefusalError(400, message, param=name)
    return size


def described(model: Any, limits: Mapping[str, Mapping[str, Any]] | None = None) -> dict[str, Any]:
    """What OpenAPI says of a body of JSON; parts of it stand where they are named.

    `limits` are what this server adds to what is said of each string, array or integer in a field.
    """
    schema = model.model_json_schema()
    parts = schema.pop("$defs", {})

    def whole(at: Any, adds: Mapping[str, Any]) -> Any:
        if isinstance(at, dict):
            named = parts.get(str(at.get("$ref", "")).removeprefix("#/$defs/"))
            if named is not None:
                return whole(named, adds)
            return {**adds.get(str(at.get("type")), {}), **{key: whole(value, adds) for key, value in at.items()}}
        return [whole(each, adds) for each in at] if isinstance(at, list) else at

    fields = {name: whole(at, (limits or {}).get(name, {})) for name, at in schema.pop("properties").items()}
    schema = {**whole(schema, {}), "properties": fields}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def _number(digits: str) -> float:
    """JSON has one kind of number: 3.0 is whole."""
    number = float(digits)
    return int(number) if number.is_integer() else number


def _text(body: bytes) -> str:
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError:
        raise RefusalError(400, "Invalid request: the body is not UTF-8") from None


def _pairs(text: str, what: str) -> list[tuple[str, str]]:
    try:
        return parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=FIELDS)
    except ValueError:  # UnicodeDecodeError is one
        raise RefusalError(400, f"Invalid request: {what} is not UTF-8, or has over {FIELDS} fields") from None


async def _multipart(request: Request, size: int) -> dict[str, str]:
    try:
        async with request.form(max_files=1, max_fields=FIELDS, max_part_size=size) as form:
            if any(isinstance(value, UploadFile) for value in form.values()):
                raise RefusalError(400, "Invalid request: files are not translated; send their text as q")
            return {name: str(form.getlist(name)[0]) for name in form}
    except UnicodeError:  # it may name a charset of its own, such as idna
        raise RefusalError(400, "Invalid request: the form is not UTF-8") from None
