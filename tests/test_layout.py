"""The rules of the house, read from the files: names, sizes, direction of imports, documentation."""

import ast
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = [
    name
    for name in ("comm", "partition", "caching", "training", "gnn", "recsys", "launch")
    if (ROOT / name).is_dir()
]

MAY_IMPORT = {
    "comm": {"comm"},
    "partition": {"comm", "partition"},
    "caching": {"comm", "caching"},
    "training": {"comm", "training"},
    "gnn": {"comm", "partition", "caching", "training", "gnn"},
    "recsys": {"comm", "partition", "caching", "training", "recsys"},
    "launch": {"comm", "partition", "caching", "training", "gnn", "recsys", "launch"},
}
"""comm <- partition, caching, training <- gnn, recsys <- launch; gnn and recsys never import each other."""

LIGHT_LIBRARIES = {"numpy", "torch"}
"""Libraries that a module may import when it is imported."""

KERNEL_LIBRARIES = {"llvmlite", "numba"}
"""The same, in compiled modules (``*_kernels.py``) only."""

ADAPTERS = {
    "mpi4py": {"comm/mpi_world.py"},
    "fbgemm_gpu": {"recsys/tables/fbgemm.py"},
    "torchrec": {"recsys/torchrec_adapter.py"},
}
"""Library -> modules that import it when they are imported, and are themselves imported inside functions only."""

MAX_LINES = 500
MAX_MEDIAN_LINES = 180


def modules() -> list[Path]:
    return sorted(path.relative_to(ROOT) for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))


def described_modules() -> list[Path]:
    """Modules that hold something: all but __init__.py and __main__.py."""
    return [path for path in modules() if not path.name.startswith("__")]


def parse(path: Path) -> ast.Module:
    return ast.parse((ROOT / path).read_text(encoding="utf-8"), filename=str(path))


def imported_names(tree: ast.AST) -> Iterator[str]:
    """Dotted names of every import in a tree, those inside functions too; a leading dot for a relative one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            yield from (f"{module}.{alias.name}" if module == "windrow" else module for alias in node.names)


def executed_on_import(tree: ast.Module) -> Iterator[ast.stmt]:
    """Statements that run when a module is imported: none in functions, none for type checkers only."""
    pending: list[ast.stmt] = list(tree.body)
    while pending:
        node = pending.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            pending.extend(node.orelse)
            continue
        yield node
        pending.extend(child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt))


def imports_of_the_package_itself(tree: ast.Module) -> set[str]:
    """Top-level names of what is imported when the module is."""
    statements = [node for node in executed_on_import(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    return {name.partition(".")[0] for statement in statements for name in imported_names(statement)}


@pytest.mark.parametrize("path", described_modules(), ids=str)
def test_every_module_has_its_test(path):
    mirror = ROOT / "tests" / path.parent / f"test_{path.name}"
    assert mirror.is_file(), f"{path} has no {mirror.relative_to(ROOT)}"


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_test_file_has_its_module(folder):
    tests = sorted((ROOT / "tests" / folder).rglob("test_*.py"))
    sources = [
        ROOT / path.relative_to(ROOT / "tests").with_name(path.name.removeprefix("test_")) for path in tests
    ]
    orphans = [
        str(test.relative_to(ROOT))
        for test, source in zip(tests, sources, strict=True)
        if not source.is_file()
    ]
    assert not orphans


def test_no_package_among_the_tests():
    assert not list((ROOT / "tests").rglob("__init__.py"))


def test_files_are_short():
    python_files = [path for folder in ("benchmarks", "examples", "tests", "tools", *FOLDERS)
                    for path in (ROOT / folder).rglob("*.py")]  # fmt: skip
    lengths = {
        path.relative_to(ROOT): len(path.read_text(encoding="utf-8").splitlines()) for path in python_files
    }
    too_long = {str(path): length for path, length in lengths.items() if length > MAX_LINES}
    assert not too_long
    assert statistics.median(lengths[path] for path in modules()) <= MAX_MEDIAN_LINES


@pytest.mark.parametrize("path", modules(), ids=str)
def test_imports_go_one_way(path):
    folder = path.parts[0]
    for name in imported_names(parse(path)):
        assert not name.startswith("."), f"{path} imports {name}: write the whole name"
        top, _, rest = name.partition(".")
        assert top not in MAY_IMPORT, f"{path} imports {name}: write windrow.{name}"
        if top == "windrow":
            target = rest.partition(".")[0]
            assert target in MAY_IMPORT[folder], f"{path} imports {name}: {folder} must not know {target}"


@pytest.mark.parametrize("path", modules(), ids=str)
def test_heavy_libraries_are_imported_where_they_are_used(path):
    allowed = LIGHT_LIBRARIES | {"windrow"} | sys.stdlib_module_names
    if path.stem.endswith("_kernels"):
        allowed |= KERNEL_LIBRARIES
    allowed |= {library for library, adapters in ADAPTERS.items() if path.as_posix() in adapters}
    heavy = imports_of_the_package_itself(parse(path)) - allowed
    assert not heavy, f"{path} imports {sorted(heavy)} as soon as it is imported: import inside the function"


@pytest.mark.parametrize("path", modules(), ids=str)
def test_adapters_are_imported_inside_functions(path):
    adapters = {
        f"windrow.{file.removesuffix('.py').replace('/', '.')}"
        for files in ADAPTERS.values()
        for file in files
    }
    statements = executed_on_import(parse(path))
    found = {
        name
        for node in statements
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in imported_names(node)
    }
    assert not found & adapters


@pytest.mark.parametrize("path", described_modules(), ids=str)
def test_module_says_what_is_public(path):
    assert declared_public_names(parse(path)) is not None, f"{path} has no __all__"


@pytest.mark.parametrize("path", modules(), ids=str)
def test_every_public_name_is_documented(path):
    tree = parse(path)
    assert ast.get_docstring(tree), f"{path} has no docstring"
    public = set(declared_public_names(tree) or ())
    undocumented = [name for name, node in documented_nodes(tree, public) if not ast.get_docstring(node)]
    assert not undocumented, f"{path}: {undocumented} have no docstring"


def declared_public_names(tree: ast.Module) -> list[str] | None:
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if isinstance(target, ast.Name) and target.id == "__all__" and node.value is not None:
                return [str(name) for name in ast.literal_eval(node.value)]
    return None


def documented_nodes(
    tree: ast.Module, public: set[str]
) -> Iterator[tuple[str, ast.ClassDef | ast.FunctionDef]]:
    """Public functions and classes of a module, and the classes' public methods."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name in public:
            yield node.name, node
            methods = node.body if isinstance(node, ast.ClassDef) else []
            for method in methods:
                if (
                    isinstance(method, ast.FunctionDef)
                    and not method.name.startswith("_")
                    and not overloads(method)
                ):
                    yield f"{node.name}.{method.name}", method


def overloads(function: ast.FunctionDef) -> bool:
    """Whether another definition carries the documentation: an overload, a setter, or an inherited meaning."""
    decorators = [ast.unparse(decorator) for decorator in function.decorator_list]
    return any(
        name in {"overload", "override", "typing.overload"} or name.endswith(".setter") for name in decorators
    )
