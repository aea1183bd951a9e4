"""What a client is told when it is not served: one exception, and its form in each of the APIs."""

from collections.abc import Mapping

from fastapi.responses import JSONResponse

INFERENCE = ("/embed", "/predict", "/rerank")  # the routes of text-embeddings-inference
KINDS = {429: "Overloaded", 500: "Backend", 503: "Unhealthy", 504: "Backend"}  # as it has them
TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}  # as OpenAI has them


class RefusalError(Exception):
    """A request that is not served, with the status and the one line that say why."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        reason: str = "request",  # for the metrics
        param: str | None = None,  # which part of the request it is about, and a name for what is wrong with it:
        code: str | None = None,  # both for OpenAI's clients
        headers: Mapping[str, str] | None = None,
    ) -> None:
        # It may quote half a character, or several lines.
        message = " ".join(message.encode("utf-8", "replace").decode().splitlines())
        super().__init__(message)
        self.status, self.message, self.reason = status, message, reason
        self.param, self.code, self.headers = param, code, dict(headers or {})


class ClientGoneError(Exception):
    """Nobody is there any more to be answered."""


def response(path: str, refusal: RefusalError) -> JSONResponse:
    """A refusal in the form of the API that a path belongs to: OpenAI's below /v1, text-embeddings-inference's on its
    own routes, LibreTranslate's elsewhere.

    >>> response("/translate", RefusalError(400, "zz is not supported")).body
    b'{"error":"zz is not supported"}'
    >>> response("/embed", RefusalError(400, "dimensions: too many")).body
    b'{"error":"dimensions: too many","error_type":"Validation"}'
    """
    said: object = refusal.message
    if path in INFERENCE:
        kind = "Empty" if refusal.code == "empty" else KINDS.get(refusal.status, "Validation")
        status = 422 if refusal.status == 400 and kind == "Validation" else refusal.status
        return JSONResponse({"error": said, "error_type": kind}, status, refusal.headers)
    if path == "/v1" or path.startswith("/v1/"):
        kind = TYPES.get(refusal.status, "invalid_request_error" if refusal.status < 500 else "server_error")
        said = {"message": refusal.message, "type": kind, "param": refusal.param, "code": refusal.code}
    return JSONResponse({"error": said}, refusal.status, refusal.headers)
