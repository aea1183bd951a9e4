"""What a form costs: tokens a second of a language model with and without one, contestants in turn.

    python bench/forms.py runs/smollm2 [--tokens 64] [--rounds 5] [--beam 1]

Seconds are those of one core, so that a busy machine changes little. `anything` is a form that forbids nothing: the
same tokens as without one, and a mask at each.
"""

import argparse
import time
from pathlib import Path
from statistics import median

from regard.api import load

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "likes": {"type": "array", "items": {"type": "string"}}},
    "required": ["name", "likes"],
    "additionalProperties": False,
}
FORMS = {"none": {}, "anything": {"regex": "(.|\n)*"}, "regex": {"regex": "([a-z]+ )+"}, "schema": {"schema": PERSON}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--beam", type=int, default=1)
    args = parser.parse_args()
    model = load(args.model, workers=1)
    seen = {name: list[float]() for name in FORMS}
    for n in range(args.rounds + 1):
        for name, form in FORMS.items():
            begin = time.process_time()
            found = model.completions("My friend is called Ada, and she", beam=args.beam, limit=args.tokens, **form)
            if n:  # the first of each makes the form ready
                seen[name].append(len(found[0].ids) / (time.process_time() - begin))
    for name, rates in seen.items():
        print(f"{name:10} {median(rates):6.1f} tokens a second, {median(rates) / median(seen['none']):.3f} of none")


if __name__ == "__main__":
    main()
