import subprocess
import sys
from pathlib import Path

import msgspec

import answering
from answering import Done, Failed, Told, Word

_PROGRAM = """
import sys
sys.path.insert(0, {folder!r})
import msgspec
from answering import serve

class Plan(msgspec.Struct):
    number: int

class Answer(msgspec.Struct):
    twice: int

def work(plan, tell):
    {work}

sys.exit(serve(Plan, work))
"""


def served(work, plan=b'{"number": 4}'):
    """Run a program that serves with this work; return its exit status and its words."""
    code = _PROGRAM.format(folder=str(Path(answering.__file__).parent), work=work)
    done = subprocess.run([sys.executable, "-c", code], input=plan, capture_output=True, timeout=60)
    return done.returncode, [msgspec.json.decode(line, type=Word) for line in done.stdout.splitlines()]


def test_it_tells_how_far_it_is_and_answers():
    status, words = served("tell('half'); return Answer(2 * plan.number)")
    assert status == 0
    assert words == [Told("half"), Done(msgspec.Raw(b'{"twice":8}'))]


def test_what_is_printed_is_no_word():
    assert served("print('hello'); return Answer(0)")[1] == [Done(msgspec.Raw(b'{"twice":0}'))]


def test_an_error_is_the_last_word_and_the_status_is_1():
    assert served("raise ValueError('too large')") == (1, [Failed("ValueError: too large")])


def test_a_plan_of_another_kind_fails():
    status, words = served("return Answer(0)", plan=b'{"number": "x"}')
    assert status == 1
    assert "ValidationError" in words[0].problem
