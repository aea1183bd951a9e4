"""LibreTranslate's API, as its clients speak it: over a real connection, with a client that was not written here."""

import http.client
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode, urlsplit

import httpx
import pytest
from libretranslatepy import LibreTranslateAPI

from regard.serving import detect
from regard.serving.config import ServeConfig
from regard.serving.registry import Registry
from tests.serving.servers import directory, running
from tests.serving.toys import LINES

TWO = "a dog runs. Two men sit on a bench!\n\n  a woman reads."


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Registry:
    root = tmp_path_factory.mktemp("models")
    pairs = {"first": "en, es", "second": "en, de", "third": "es, de", "fourth": "en, es"}
    return Registry([directory(root / name, seed, pair) for seed, (name, pair) in enumerate(pairs.items())])


@pytest.fixture(scope="module")
def address(registry: Registry) -> Iterator[str]:
    with running(registry, ServeConfig(explorer=False, characters=500)) as (address, _):
        yield address


def offline(registry: Registry, text: str, model: str = "first", **settings: Any) -> str:
    return registry.get(model).predictor().translate(text, split=True, **settings)


def post(address: str, fields: dict[str, Any], path: str = "/translate", **how: Any) -> httpx.Response:
    return httpx.post(address + path, json=fields, timeout=30, **how)


def test_a_real_client_translates_detects_and_lists(registry: Registry, address: str) -> None:
    client = LibreTranslateAPI(address)
    for text in [*LINES, TWO, "ñandú 中文 & = % +"]:
        assert client.translate(text, "en", "es") == offline(registry, text)
    assert client.translate(LINES[0], "es", "de") == offline(registry, LINES[0], "third")
    assert client.detect("Where is the library, and who are you?")[0]["language"] == "en"
    codes = {each["code"]: each for each in client.languages()}
    assert codes["en"] == {"code": "en", "name": "English", "targets": ["es", "de"]}
    assert codes["es"]["targets"] == ["de"]
    assert codes["de"]["targets"] == []
    with pytest.raises(HTTPError, match="400"):
        client.translate("x", "en", "zz")


@pytest.mark.parametrize("how", ["json", "data", "files", "params"])
def test_every_way_of_sending_says_the_same(registry: Registry, address: str, how: str) -> None:
    fields: dict[str, Any] = {"q": TWO, "source": "en", "target": "es", "format": "text", "api_key": ""}
    given = {name: (None, value) for name, value in fields.items()} if how == "files" else fields  # multipart
    answer = httpx.post(f"{address}/translate", **{how: given}, timeout=30)
    assert answer.status_code == 200
    assert answer.json() == {"translatedText": offline(registry, TWO)}


def test_a_get_may_have_a_body(address: str) -> None:
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=30)
    body = urlencode({"api_key": "x"})
    connection.request("GET", "/languages", body, {"Content-Type": "application/x-www-form-urlencoded"})
    answer = connection.getresponse()
    assert answer.status == 200
    assert [each["code"] for each in json.load(answer)] == ["en", "es", "de"]
    connection.request("GET", "/health")  # and the connection is still good
    assert json.load(connection.getresponse()) == {"status": "ok"}


def test_a_list_is_answered_by_lists(registry: Registry, address: str) -> None:
    texts = [*LINES, "", "  "]
    fields = {"q": texts, "source": "auto", "target": "es", "alternatives": 2}
    answer = post(address, fields).json()
    assert answer["translatedText"] == [offline(registry, text) for text in texts]
    assert [sorted(each) for each in answer["detectedLanguage"]] == [["confidence", "language"]] * len(texts)
    assert len(answer["alternatives"]) == len(texts)
    assert post(address, {"q": [], "source": "en", "target": "es"}).json() == {"translatedText": []}


def test_alternatives_are_the_next_best(registry: Registry, address: str) -> None:
    fields = {"q": LINES[1], "source": "en", "target": "es", "alternatives": 2}
    answer = post(address, fields).json()
    best = [each.text for each in registry.get("first").predictor().hypotheses(LINES[1], best=3)]
    assert [answer["translatedText"], *answer["alternatives"]] == list(dict.fromkeys(best))
    assert "alternatives" not in post(address, {**fields, "alternatives": 0}).json()
    form = httpx.post(f"{address}/translate", data={**fields, "alternatives": "2"}, timeout=30)
    assert form.json() == answer


def test_auto_chooses_among_the_languages_that_have_the_target(registry: Registry, address: str) -> None:
    spanish, english = "¿Dónde está la biblioteca de los niños?", "Where is the library of the children?"
    answer = post(address, {"q": [spanish, english], "source": "auto", "target": "de"}).json()
    assert [each["language"] for each in answer["detectedLanguage"]] == ["es", "en"]
    assert all(0 <= each["confidence"] <= 100 for each in answer["detectedLanguage"])
    expected = [offline(registry, spanish, "third"), offline(registry, english, "second")]
    assert answer["translatedText"] == expected
    single = post(address, {"q": [english, spanish], "source": "auto", "target": "es"})  # only English has it
    assert single.status_code == 400
    assert re.fullmatch(
        r"the language of '¿Dónde.*' cannot be told: en is 0.0 % likely; name it as source", single.json()["error"]
    )
    number = post(address, {"q": "12 + 3", "source": "auto", "target": "es"}).json()  # in any language
    assert number["detectedLanguage"]["language"] == "en"


def test_what_the_model_cannot_know_is_said(address: str) -> None:
    fields = {"q": [LINES[0], "Привет, мир"], "source": "en", "target": "es"}
    warning = "the model has no sub-words for 'Привет', 'мир', and can only guess"
    assert post(address, fields).json()["warning"] == [None, warning]
    assert post(address, {**fields, "q": "<b>Привет</b>, мир", "format": "html"}).json()["warning"] == warning
    assert "warning" not in post(address, {**fields, "q": LINES[0]}).json()


def test_without_the_library_there_is_no_detection_but_where_there_is_no_choice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(detect.Detector, "_identifier", None)
    detector = detect.Detector(["en", "es"])
    assert detector.guess("x", among=["es"]) == [detect.Detected(confidence=100.0, language="es")]
    with pytest.raises(detect.RefusalError, match=r"install regard\[detect\]"):
        detector.guess("x")


def test_html_keeps_its_tags(registry: Registry, address: str) -> None:
    html = (
        f"<p>{LINES[0]} <a href=\"/x?a=1&amp;b=2\" class='y'>{LINES[1]}</a></p>\n<hr/><script>if (a < b) {{}}</script>"
    )
    for fields in ({}, {"alternatives": 3}):
        answer = post(address, {"q": html, "source": "en", "target": "es", "format": "html", **fields}).json()
        for page in [answer["translatedText"], *answer.get("alternatives", [])]:
            assert re.findall("<[^>]+>", page) == re.findall("<[^>]+>", html)
            assert "<script>if (a < b) {}</script>" in page
    plain = post(address, {"q": f"<p>{LINES[0]}</p>", "source": "en", "target": "es", "format": "html"}).json()
    said = offline(registry, LINES[0]).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    assert plain["translatedText"] == f"<p>{said}</p>"
    assert post(address, {"q": "<br>", "source": "en", "target": "es", "format": "html"}).json() == {
        "translatedText": "<br>"
    }


def test_regions_and_cases_of_codes_do_not_matter(registry: Registry, address: str) -> None:
    answer = post(address, {"q": LINES[0], "source": "EN", "target": "es-MX"})
    assert answer.json() == {"translatedText": offline(registry, LINES[0])}


FINE: dict[str, Any] = {"q": "a dog", "source": "en", "target": "es"}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"source": "en", "target": "es"}, "Invalid request: missing q parameter"),
        ({"q": "a", "target": "es"}, "Invalid request: missing source parameter"),
        ({"q": "a", "source": "en"}, "Invalid request: missing target parameter"),
        ({**FINE, "target": "zz"}, "zz is not supported"),
        ({**FINE, "source": "zz"}, "zz is not supported"),
        ({**FINE, "source": "\ud800"}, "? is not supported"),
        ({**FINE, "source": "es"}, "es is not available as a target language from es"),
        ({**FINE, "q": 7}, "Invalid request: q: Input should be a valid string"),
        ({**FINE, "q": None}, "Invalid request: q: Input should be a valid string"),
        ({**FINE, "q": ["a", 7]}, "Invalid request: q: Input should be a valid string"),
        ({**FINE, "q": ["a"] * 1001}, "Invalid request: q: Input should be a valid string"),
        ({**FINE, "q": "\ud800"}, "Invalid request: q has a character that is no text"),
        ({**FINE, "q": "a\0b"}, "Invalid request: q has a character that is no text"),
        ({**FINE, "q": "a" * 501}, "Invalid request: request (501) exceeds text limit (500)"),
        ({**FINE, "q": ["a" * 300] * 2}, "Invalid request: request (600) exceeds text limit (500)"),
        ({**FINE, "format": "pdf"}, "Invalid request: format: Input should be 'text' or 'html'"),
        ({**FINE, "alternatives": "2"}, "Invalid request: alternatives: Input should be a valid integer"),
        ({**FINE, "alternatives": -1}, "Invalid request: alternatives: Input should be greater than or equal to 0"),
        ({**FINE, "alternatives": 10**9}, "Invalid request: alternatives: Input should be less than or equal to 16"),
        ({**FINE, "alternatives": True}, "Invalid request: alternatives: Input should be a valid integer"),
        ({**FINE, "api_key": 7}, "Invalid request: api_key: Input should be a valid string"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(address: str, fields: dict[str, Any], message: str) -> None:
    body = json.dumps(fields)  # in which half a surrogate pair is plain ASCII
    answer = httpx.post(f"{address}/translate", content=body, headers={"Content-Type": "application/json"}, timeout=30)
    assert answer.status_code == 400
    assert list(answer.json()) == ["error"]
    assert answer.json()["error"].startswith(message)


@pytest.mark.parametrize(
    ("kind", "body", "message"),
    [
        ("application/json", b'{"q": "a", ', "Invalid request: the body is not JSON"),
        ("application/json", b"[" * 60_000, "Invalid request: the body is not JSON"),
        ("application/json", b"[1]", "Invalid request: the body is not a JSON object"),
        ("application/json", b'{"q": "\xff"}', "Invalid request: the body is not UTF-8"),
        ("application/x-www-form-urlencoded", b"q=%ff&source=en&target=es", "Invalid request: the form is not UTF-8"),
        ("application/x-www-form-urlencoded", b"q=\xff&source=en&target=es", "Invalid request: the body is not UTF-8"),
        ("application/x-www-form-urlencoded", b"&".join([b"a=b"] * 200), "Invalid request: the form is not UTF-8, or"),
        ("application/x-www-form-urlencoded", b'{"q": "a"}', "Invalid request: missing q parameter"),
        ("multipart/form-data", b"--x", "Missing boundary in multipart"),
        ("multipart/form-data; boundary=x", b"nonsense", ""),
        (
            "multipart/form-data; boundary=x",
            b'--x\r\nContent-Disposition: form-data; name="q"\r\n\r\n\xff\r\n--x--\r\n',
            "Invalid request: the body is not UTF-8",
        ),
        (
            "multipart/form-data; boundary=x",
            b'--x\r\nContent-Disposition: form-data; name="q"; filename="a"\r\n\r\na\r\n--x--\r\n',
            "Invalid request: files are not translated",
        ),
        (
            "multipart/form-data; boundary=x; charset=idna",
            b'--x\r\nContent-Disposition: form-data; name="q"\r\n\r\nxn--\x7f\r\n--x--\r\n',
            "Invalid request: the form is not UTF-8",
        ),
        ("text/plain", b"hello", "Invalid request: a body of type 'text/plain'"),
        ("", b"hello", "Invalid request: the body is not JSON"),
    ],
)
def test_a_body_that_says_nothing_is_refused(address: str, kind: str, body: bytes, message: str) -> None:
    for path in ("/translate", "/detect"):
        answer = httpx.post(address + path, content=body, headers={"Content-Type": kind}, timeout=30)
        assert answer.status_code == 400
        assert list(answer.json()) == ["error"]
        assert answer.json()["error"].startswith(message)


def test_the_wrong_method_and_an_unknown_path(address: str) -> None:
    for method, path, status in (
        ("GET", "/detect", 405),
        ("GET", "/translate", 405),
        ("POST", "/languages", 405),
        ("GET", "/suggest", 404),
        ("GET", "/translate/../../etc/passwd", 404),
        ("GET", "/%2e%2e/%2e%2e/etc/passwd", 404),
    ):
        answer = httpx.request(method, address + path, timeout=30)
        assert (answer.status_code, list(answer.json())) == (status, ["error"]), path


def test_settings_for_a_page(address: str) -> None:
    settings = httpx.get(f"{address}/frontend/settings").json()
    assert settings == {
        "charLimit": 500,
        "frontendTimeout": 500,
        "apiKeys": False,
        "keyRequired": False,
        "suggestions": False,
        "filesTranslation": False,
        "supportedFilesFormat": [],
        "language": {"source": {"code": "en", "name": "English"}, "target": {"code": "es", "name": "Spanish"}},
    }


def test_a_key_is_asked_for_where_there_is_one(registry: Registry, tmp_path: Path) -> None:
    with running(registry, ServeConfig(explorer=False, api_keys=("first-key", "other-key"))) as (address, _):
        assert LibreTranslateAPI(address, "other-key").translate(LINES[0]) == offline(registry, LINES[0])
        assert post(address, FINE).status_code == 400
        assert "key is required" in post(address, {**FINE, "api_key": ""}).json()["error"]
        assert post(address, {**FINE, "api_key": "first-ke"}).status_code == 403
        half = json.dumps({**FINE, "api_key": "\ud800"})
        assert httpx.post(f"{address}/translate", content=half, timeout=30).status_code == 403
        assert post(address, FINE, headers={"Authorization": "Bearer first-key"}).status_code == 200
        assert httpx.get(f"{address}/languages").status_code == 200
        assert httpx.get(f"{address}/frontend/settings").json()["keyRequired"] is True


def test_who_asks_too_often_is_told_when_to_come_back(registry: Registry) -> None:
    with running(registry, ServeConfig(explorer=False, rate=2)) as (address, _):
        answers = [post(address, FINE) for _ in range(3)]
        assert [answer.status_code for answer in answers] == [200, 200, 429]
        assert 1 <= int(answers[-1].headers["Retry-After"]) <= 31
        assert answers[-1].json()["error"].startswith("slow down")
        assert httpx.get(f"{address}/languages").status_code == 200
