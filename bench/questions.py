"""Questions to learn from, where nobody has asked any: sentences of WikiText-2 whose names and numbers are asked for.

    python bench/questions.py cloze -o cloze.jsonl [--many 16000]    from plain text, without labels
    python bench/questions.py asked FOLDER -o asked.jsonl            those people asked, out of T0's tasks in FOLDER

Both write rows of the task `answer`. A cloze question is made as by Lewis et al. (2019): a name, a date, a number or a
short phrase of a sentence is the answer, and a word such as `who` with what is left of the clause, a little disturbed,
is the question. Its context is the paragraph around that sentence; or, where the same answer stands in another sentence
of the article that tells of similar things, the paragraph around that one (Ram et al., 2021; Fabbri et al., 2020), so
that it is not enough to look for the same words. Half are of either kind, as far as there are so many.
"""

import argparse
import json
import re
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from regard.data.corpora import fetched

MONTHS = "January|February|March|April|May|June|July|August|September|October|November|December"
NAME = r"[A-Z][\w.'-]*\w(?: (?:of |the |de |von |van )*[A-Z0-9][\w.'-]*\w)*"
DATE = rf"(?:\d{{1,2}} )?(?:{MONTHS})(?: \d{{1,2}}\b)?(?:,? \d{{4}})?|\b1[0-9]\d\d\b|\b20[01]\d\b"
NUMBER = (
    r"(?:[$£])?\b\d[\d,.]*\d?(?: (?:million|billion))?\b|\b(?:two|three|four|five|six|seven|eight|nine|ten|twelve)\b"
)
PHRASE = r"(?:(?<= the )|(?<= a )|(?<= an ))[a-z]+(?:[ -][a-z]+){0,2}(?=[,.;]| of | in | and | to | from | by )"
KINDS = [("date", DATE), ("number", NUMBER), ("name", NAME), ("phrase", PHRASE)]
SHARES = {"date": 0.15, "number": 0.15, "name": 0.45, "phrase": 0.25}
COUNTED = r"%| percent| per cent| (?:[a-z]+ )?[a-z]+s\b"  # what follows a number that can be asked for
ADJECTIVE = r"(?:an|ese|ish|ic|ch|man)$"  # of a name that only says of which kind something is, before that
PLACES = {"in", "at", "near", "from", "to", "into", "towards"}
DID = {"said", "wrote", "was", "had", "became", "told", "played", "argued", "stated", "felt", "won", "made", "scored"}
PLAIN = frozenset(
    re.findall(
        r"\w+",
        "the a an of in on at to for by with from and or but as is was were are be been it its his her their he she "
        "they that this which who whom had has have not also after before during than into over when while where there",
    )
)
WORDS = (80, 140)  # of a context


class Sentence(NamedTuple):
    text: str
    article: int
    paragraph: int
    place: int  # among the sentences of its paragraph


def plain(line: str) -> str:
    """WikiText's line as it was written."""
    text = re.sub(r" @([-,.])@ ", r"\1", line.strip())
    text = re.sub(r" ([,.;:!?)\]%]|'s\b|'t\b|n't\b|' )", r"\1", text)
    text = re.sub(r"([(\[$£]) ", r"\1", text)
    return re.sub(r'" ([^"]*) "', r'"\1"', text)


def read() -> list[list[list[Sentence]]]:
    """Articles, their paragraphs, their sentences."""
    articles: list[list[list[Sentence]]] = []
    for line in fetched("wikitext2")["train"][0].read_text().splitlines():
        if re.match(r" = [^=]", line):
            articles.append([])
        elif len(line.split()) > 20 and "=" not in line[:4]:
            texts = re.split(r'(?<=[a-z0-9)"][.!?]) (?=[A-Z"])', plain(line))
            where = len(articles) - 1, len(articles[-1])
            articles[-1].append([Sentence(text, *where, i) for i, text in enumerate(texts)])
    return articles


def spans(text: str) -> Iterator[tuple[str, int, str]]:
    """What might be asked for in a sentence: its kind, where it begins, and what it is."""
    taken: set[int] = set()
    for kind, pattern in KINDS:
        for found in re.finditer(pattern, text):
            here, before, after = set(range(*found.span())), text[: found.start()], text[found.end() :]
            counted = re.search(r"[$£] ?$|^[$£]", before[-2:] + found[0]) or re.match(COUNTED, after)
            named = re.search(r"\w,? $", before) and not (re.search(ADJECTIVE, found[0]) and re.match(r" [a-z]", after))
            if here & taken or before.count("(") > before.count(")"):
                continue
            taken |= here
            if (kind != "number" or counted) and (kind != "name" or (named and len(found[0]) > 3)):
                yield kind, found.start(), found[0]


def content(text: str) -> set[str]:
    return {word for word in re.findall(r"[a-z0-9]+", text.lower()) if word not in PLAIN}


def asked_with(kind: str, before: str, answer: str, after: str, draw: Random) -> tuple[str, str, str]:
    """The words that ask, and what is left before and after them."""
    last = re.search(r"(\w+) $", before)
    word = last[1].lower() if last else ""
    if kind == "date":
        year = re.fullmatch(r"\d{4}", answer)
        before = before[: last.start()] if last and word in ("in", "on", "since", "until", "by", "of") else before
        asks = ["in what year", "what year", "when"] if year else ["when", "when", "on what date"]
        return draw.choice(asks), before, after
    if kind == "number":
        if "$" in answer or "£" in answer or re.match(r"%| percent| per cent", after):
            return ("how much" if "$" in answer or "£" in answer else "what percentage"), before, after
        noun = re.match(COUNTED, after)
        return ("how many" + noun[0], before, after[noun.end() :]) if noun else ("how much", before, after)
    if kind == "name":
        then = re.match(r" (\w+)", after)
        if word in PLACES and not after.startswith("'s"):
            before = before[: last.start() if last else 0]
            return draw.choice(["where", "where", "what place", "which city"]), before, after
        if after.startswith("'s"):
            return "whose", before, after[2:]
        if word in ("by", "with") or (then and (then[1] in DID or then[1].endswith("ed"))):
            return draw.choice(["who", "who", "what", "which"]), before, after
    return draw.choice(["what", "what", "what", "which"]), re.sub(r"\b(the|an?) $", "", before), after


def clause(before: str, after: str) -> tuple[str, str]:
    """What stands around an answer, to the next comma or conjunction on either side, if enough is left."""
    near = re.split(r"[,;:()\"]|\b(?:and|but|while|although|because)\b", before)[-1]
    far = re.split(r"[,;:()\"]|\b(?:and|but|while|although|because)\b", after)[0]
    for a, b in ((near, far), (near, after), (before, far), (before, after)):
        if len(content(a + " " + b)) >= 4:
            return a, b
    return before, after


def disturbed(words: list[str], draw: Random) -> list[str]:
    """A little shorter, and not quite in their order."""
    kept = [word for word in words if draw.random() > (0.35 if word in ("the", "a", "an", "also") else 0.07)]
    keys = [i + draw.random() * 1.8 for i in range(len(kept))]
    return [kept[i] for i in sorted(range(len(kept)), key=keys.__getitem__)] if draw.random() < 0.4 else kept


def question(sentence: str, kind: str, start: int, answer: str, draw: Random) -> str:
    """What asks for a part of a sentence."""
    near, far = clause(sentence[:start], sentence[start + len(answer) :])
    ask, before, after = asked_with(kind, near, answer, far, draw)
    first, second = disturbed(before.split(), draw), disturbed(after.split(), draw)
    rest = second + first if draw.random() < 0.5 else first + second
    text = " ".join([ask, *draw.choice([[], [], ["did"], ["was"], ["is"]]), *rest[:22]])
    text = re.sub(r"(?: |^)[.,;:–-]+(?= |$)|[\"()]", "", text).rstrip(" .,;:")
    return text[:1].upper() + text[1:] + "?"


def context(paragraph: list[Sentence], at: int, draw: Random) -> tuple[str, int]:
    """Sentences around one of a paragraph, and where that one begins."""
    first = last = at
    size, most = len(paragraph[at].text.split()), draw.randint(*WORDS)
    while size < most and (first > 0 or last + 1 < len(paragraph)):
        back = first > 0 and (last + 1 == len(paragraph) or draw.random() < 0.5)
        first, last = (first - 1, last) if back else (first, last + 1)
        size += len(paragraph[first if back else last].text.split())
    texts = [each.text for each in paragraph[first : last + 1]]
    return " ".join(texts), sum(len(text) + 1 for text in texts[: at - first])


def cloze(many: int, seed: int = 1) -> Iterator[dict[str, Any]]:
    """Questions about WikiText-2."""
    draw, articles = Random(seed), read()
    made: dict[bool, list[tuple[str, dict[str, Any]]]] = {True: [], False: []}
    for article in articles:
        sentences = [s for paragraph in article for s in paragraph if 8 <= len(s.text.split()) <= 50]
        where: dict[str, list[tuple[Sentence, int]]] = {}
        for s in sentences:
            for _, at, answer in spans(s.text):
                where.setdefault(answer, []).append((s, at))
        for s in sentences:
            for kind, start, answer in spans(s.text):
                words = content(s.text) - content(answer)
                there = [(o, at) for o, at in where[answer] if o.paragraph != s.paragraph]
                others = [(len(words & content(o.text)), o, at) for o, at in there]
                shared, one, at = max(others, key=lambda each: each[0], default=(0, s, start))
                told = shared >= 2
                if not told:
                    one, at = s, start
                around, begins = context(article[one.paragraph], one.place, draw)
                asks = question(s.text, kind, start, answer, draw)
                if len(around.split()) >= 40 and len(asks.split()) > 4:
                    answers = [{"text": answer, "answer_start": begins + at}]
                    made[told].append((kind, {"question": asks, "context": around, "answers": answers}))
    chosen = []
    for kind, share in SHARES.items():
        wanted = round(many * share)
        elsewhere, here = ([row for k, row in made[side] if k == kind] for side in (True, False))
        half = draw.sample(elsewhere, min(len(elsewhere), wanted // 2))
        chosen += half + draw.sample(here, min(len(here), wanted - len(half)))
    draw.shuffle(chosen)
    yield from chosen


ASKED = {
    "adversarial_qa_d*_question_context_answer": r'Question: "(?P<q>.*)"\n\nContext: "(?P<c>.*)"\n\nAnswer:',
    "adversarial_qa_d*_based_on": r"Extract.*?\nQuestion: (?P<q>.*)\nContext: (?P<c>.*)",
    "adversarial_qa_d*_answer_the_following_q": r'Given .*?\n\n"(?P<c>.*)",\n\nanswer .*Question: (?P<q>.*)',
    "quoref_Given_Context_Answer_Question": r"(?P<q>.*?)\n\nAnswer the above .*?:\n\n(?P<c>.*)",
    "quoref_Answer_Question_Given_Context": r"Given .*?:\n\n(?P<c>.*)\n\nanswer the following question:\n\n(?P<q>.*)",
    "duorc_*_extract_answer": r"Extract .*?\nQuestion: (?P<q>.*?)\nTitle: .*?\nContext: (?P<c>.*)",
    "duorc_*_question_answering": r"Question: (?P<q>.*?)\nIf .*?\nMovie title: .*?\nContext: (?P<c>.*)",
    "ropes_plain_no_background": r"(?P<c>.*)\n\n(?P<q>.*)",
    "ropes_prompt_bottom_no_hint": r"(?P<c>.*)\n\n(?P<q>.*)",
}


def people(folder: Path, seed: int = 1) -> Iterator[dict[str, Any]]:
    """Questions that people asked, each once, whose answers stand in their contexts: around these, if they are long."""
    draw, seen = Random(seed), set()
    for pattern, form in ASKED.items():
        for path in sorted(folder.glob(f"{pattern}.jsonl")):
            for line in path.read_text().splitlines():
                held = json.loads(line)
                found = re.fullmatch(form, held["prompt"].strip(), re.DOTALL)
                answer = held["completion"].removesuffix("<|endoftext|>").strip()
                if found is None or not answer or answer not in found["c"]:
                    continue
                asks, whole = found["q"].strip(), found["c"].strip()
                if (asks, whole[:200]) in seen:
                    continue
                seen.add((asks, whole[:200]))
                texts = re.split(r"(?<=[.!?]) (?=[A-Z\"])", whole)
                at = next((i for i, text in enumerate(texts) if answer in text), None)
                if len(whole.split()) > WORDS[1] and at is not None:
                    whole, _ = context([Sentence(text, 0, 0, i) for i, text in enumerate(texts)], at, draw)
                if answer in whole:
                    yield {"question": asks, "context": whole, "answers": [answer]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["cloze", "asked"])
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--many", type=int, default=16000)
    told = parser.parse_args()
    rows = list(cloze(told.many) if told.what == "cloze" else people(told.folder))
    told.output.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    print(f"{len(rows):,} questions: {told.output}")


if __name__ == "__main__":
    main()
