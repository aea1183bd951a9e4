"""The same files, guided by which lines of regard they reach: `python -m tests.fuzz.guided TARGET -max_total_time=60`.

Needs atheris (`pip install 'regard[fuzz]'`, on Linux); options are libFuzzer's.
"""

import sys

if __name__ == "__main__":
    import atheris

    with atheris.instrument_imports(include=["regard"]):
        from tests.fuzz.test_fuzz import attempt
    name, *options = sys.argv[1:]
    atheris.Setup([sys.argv[0], *options], attempt(name).hypothesis.fuzz_one_input)
    atheris.Fuzz()
