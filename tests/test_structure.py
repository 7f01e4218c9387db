"""The bounds that hold the house: sizes, imports, what a library must not do."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LIBRARIES = ("shards", "stream")
SOURCES = sorted(path for room in (*LIBRARIES, "tools", "benchmarks") for path in (ROOT / room).glob("*.py"))
LIBRARY_FILES = [path for path in SOURCES if path.parent.name in LIBRARIES]
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def functions(path: Path):
    return [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, FUNCTIONS)]


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or ".")
    return found


def test_there_are_sources_to_look_at():
    assert {path.parent.name for path in SOURCES} == {"shards", "stream", "tools", "benchmarks"}


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_a_file_has_at_most_300_lines(path):
    assert len(path.read_text().splitlines()) <= 300


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_a_function_has_at_most_40_lines_of_code(path):
    long = [node.name for node in functions(path) if lines_without_docstring(node) > 40]
    assert not long


def lines_without_docstring(node) -> int:
    docstring = node.body[0] if ast.get_docstring(node, clean=False) is not None else None
    spent = docstring.end_lineno - docstring.lineno + 1 if docstring else 0
    return node.end_lineno - node.lineno + 1 - spent


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_no_function_takes_arguments_without_names(path):
    assert not [node.name for node in functions(path) if node.args.kwarg]


@pytest.mark.parametrize("path", LIBRARY_FILES, ids=name)
def test_a_library_reads_no_environment(path):
    found = [line for line in path.read_text().splitlines() if "os.environ" in line or "getenv" in line]
    allowed = ['    said = os.environ.get("WORLD_SIZE", "1")'] if name(path) == "stream/launch.py" else []
    assert found == allowed


@pytest.mark.parametrize("path", LIBRARY_FILES, ids=name)
def test_a_library_neither_prints_nor_pickles(path):
    calls = [
        node.func.id
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    ]
    assert "print" not in calls
    assert not imports(path) & {"pickle", "dill", "cloudpickle", "marshal", "shelve"}


@pytest.mark.parametrize("path", [p for p in SOURCES if p.parent.name == "tools"], ids=name)
def test_tools_use_the_format_and_the_decoder_and_no_tensors(path):
    trains = path.name in {"captioner.py", "train_captioner.py"}
    used = {module for module in imports(path) if module.split(".")[0] in {"stream", "torch", "accelerate"}}
    assert trains or used <= {"stream.decode", "stream.errors", "stream.orientation"}


@pytest.mark.parametrize("path", LIBRARY_FILES, ids=name)
def test_nobody_imports_its_own_front_door(path):
    assert not imports(path) & set(LIBRARIES) or path.name == "__init__.py"


def test_the_import_contracts_hold():
    run = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.parametrize("package", LIBRARIES)
def test_the_packages_come_from_this_repository(package):
    module = __import__(package)
    assert Path(module.__file__).resolve() == ROOT / package / "__init__.py"
