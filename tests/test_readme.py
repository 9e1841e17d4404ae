"""Commands in the documents are commands that exist: every ``make`` target, file name, subcommand and option."""

import re
import shlex
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
SHELL_BLOCK = re.compile(r"^```(?:bash|console|sh|shell)\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)")
CHECKED_PROGRAMS = {"make", "mpirun", "python", "srun", "torchrun", "windrow"}
LAUNCHERS_WITH_COUNTS = {"mpirun": {"-n", "-np", "-hostfile", "-f", "-ppn"}, "srun": {"-n", "-N"}}
LIBRARY = ("comm", "partition", "caching", "training", "gnn", "recsys", "launch")
MADE_BY_COMMANDS = ("runs/", "stores/")


def shell_commands() -> list[tuple[str, str]]:
    """(document, command) for every command in a fenced block, continued lines joined, prompts and comments dropped."""
    found = []
    for document in DOCUMENTS:
        for block in SHELL_BLOCK.findall(document.read_text(encoding="utf-8")):
            for line in block.replace("\\\n", " ").splitlines():
                command = " ".join(shlex.split(line.strip().removeprefix("$ "), comments=True))
                if command:
                    found.append((document.relative_to(ROOT).as_posix(), command))
    return found


COMMANDS = shell_commands()


def make_targets() -> set[str]:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    return set(re.findall(r"^([a-z][a-z-]*):", text, re.MULTILINE))


def after_launcher(words: list[str]) -> list[str]:
    """The command that mpirun, srun or torchrun starts."""
    launcher, *rest = words
    if launcher == "torchrun":
        return ["windrow", *rest[rest.index("windrow.launch") + 1 :]]
    counts = LAUNCHERS_WITH_COUNTS[launcher]
    while rest and rest[0].startswith("-"):
        rest = rest[2:] if rest[0] in counts else rest[1:]
    return rest


def check(words: list[str]) -> None:
    """Fail where a command names what does not exist."""
    program = words[0]
    if program in {"mpirun", "srun", "torchrun"}:
        check(after_launcher(words))
    elif program == "make":
        targets = [word for word in words[1:] if "=" not in word]
        assert set(targets) <= make_targets()
    elif program == "windrow":
        check_windrow(words[1:])
    elif Path(program).name == "python":
        check_script(words[1:])


def check_windrow(arguments: list[str]) -> None:
    from windrow.launch.cli import build_parser

    try:
        build_parser().parse_args(arguments)
        refused = False
    except SystemExit as end:
        refused = bool(end.code)  # --help and --version end with 0
    assert not refused, f"the parser refuses: windrow {' '.join(arguments)}"
    check_files(arguments)


def check_script(arguments: list[str]) -> None:
    script = next((word for word in arguments if word.endswith(".py")), None)
    if script is not None:
        assert (ROOT / script).is_file(), f"there is no {script}"
    check_files(arguments)


def check_files(words: list[str]) -> None:
    for word in (word.rpartition("=")[2] for word in words):  # also of --set plan.file=...
        if word.endswith((".toml", ".npz")) and not word.startswith(MADE_BY_COMMANDS):
            assert (ROOT / word).is_file(), f"there is no {word}"


def test_the_readme_has_the_two_commands():
    commands = {command for document, command in COMMANDS if document == "README.md"}
    assert {"make demo", "make test"} <= commands


def test_results_of_the_readme_are_those_of_the_benchmarks():
    readme, benchmarks = ((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "docs/benchmarks.md"))
    rows = [line for line in readme.partition("## Results")[2].partition("\n## ")[0].splitlines() if line[:1] == "|"]
    assert len(rows) > 10
    assert set(rows) <= set(benchmarks.splitlines())


@pytest.mark.parametrize(("document", "command"), COMMANDS)
def test_command_exists(document, command):
    words = shlex.split(command.partition(" > ")[0])
    while words and re.fullmatch(r"[A-Z_]+=\S*", words[0]):
        words = words[1:]
    if words and Path(words[0]).name in CHECKED_PROGRAMS:
        check(words)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_linked_files_exist(document):
    targets = LINK.findall(document.read_text(encoding="utf-8"))
    missing = [target for target in targets if not (document.parent / target).exists()]
    assert not missing


def headings(document: Path) -> list[str]:
    """The anchors of its sections, as they are linked to."""
    text = re.sub(r"^```.*?^```", "", document.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    found = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_sections_that_are_linked_to_exist_once(document):
    text = document.read_text(encoding="utf-8")
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#([^)]*)\)", text):
        assert headings((document.parent / target) if target else document).count(anchor) == 1, f"{target}#{anchor}"
    if document.name != "settings.md":  # Which has the sections of two kinds of recipes.
        assert len(set(headings(document))) == len(headings(document))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_files_and_modules_in_the_text_exist(document):
    """Paths that begin with a folder of the checkout, and names after ``windrow.``: modules, or what is in them."""
    text = re.sub(r"```.*?```", "", document.read_text(encoding="utf-8"), flags=re.DOTALL)
    quoted = [word for word in re.findall(r"`([\w./*-]+)`", text) if "NAME" not in word]
    folders = (*LIBRARY, "benchmarks", "docs", "examples", "requirements", "tests", "tools")
    missing = [
        word for word in quoted if word.startswith(tuple(f"{name}/" for name in folders)) and not any(ROOT.glob(word))
    ]
    missing += [word for word in quoted if word.startswith("windrow.") and not is_in_library(word)]
    assert not missing


def is_in_library(dotted: str) -> bool:
    path = ROOT / dotted.removeprefix("windrow.").replace(".", "/")
    files = [path.parent.with_suffix(".py"), path.parent / "__init__.py"]
    texts = [file.read_text(encoding="utf-8") for file in files if file.is_file()]
    is_module = path.is_dir() or path.with_suffix(".py").is_file()
    return is_module or any(re.search(rf"\b{path.name}\b", text) for text in texts)


@pytest.mark.parametrize(
    "command", ["make nonsense", "windrow trian x", "windrow train --no-such-option", "python x.py"]
)
def test_a_command_that_does_not_exist_is_noticed(command):
    with pytest.raises(AssertionError):
        check(shlex.split(command))


@pytest.mark.parametrize(
    "launcher",
    ["mpirun -n 2 -hostfile hosts windrow", "srun --mpi=pmi2 windrow", "torchrun --nproc-per-node 2 -m windrow.launch"],
)
def test_commands_behind_launchers_are_found(launcher):
    assert after_launcher(shlex.split(f"{launcher} train a.toml")) == ["windrow", "train", "a.toml"]
