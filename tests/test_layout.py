"""The rules of the house, read from the files: names, sizes, direction of imports, documentation."""

import ast
import functools
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("comm", "partition", "caching", "training", "gnn", "recsys", "launch")

MAY_IMPORT = {
    "comm": {"comm"},
    "partition": {"comm", "partition"},
    "caching": {"comm", "caching"},
    "training": {"comm", "partition", "training"},
    "gnn": {"comm", "partition", "caching", "training", "gnn"},
    "recsys": {"comm", "partition", "caching", "training", "recsys"},
    "launch": {"comm", "partition", "caching", "training", "gnn", "recsys", "launch"},
}
"""comm <- partition, caching <- training <- gnn, recsys <- launch; gnn and recsys never import each other."""

LIGHT_LIBRARIES = {"numpy", "pydantic", "pydantic_core", "torch"}
"""Libraries that a module may import when it is imported."""

KERNEL_LIBRARIES = {"llvmlite", "numba"}
"""The same, in compiled modules (``*_kernels.py``) only."""

ADAPTERS = {
    "comm/mpi_world.py": "mpi4py",
    "recsys/tables/fbgemm.py": "fbgemm_gpu",
    "recsys/torchrec_adapter.py": "torchrec",
    "comm/quantize_triton.py": "triton",
    "recsys/tables/robe_triton.py": "triton",
}
"""Module -> the library that it imports when it is imported; others import the module inside functions only."""

MAX_LINES = 700


def modules() -> list[Path]:
    return sorted(path.relative_to(ROOT) for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))


@functools.cache
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


def imported_at_once(path: Path) -> set[str]:
    """Dotted names of what is imported when a module is."""
    imports = (node for node in executed_on_import(parse(path)) if isinstance(node, ast.Import | ast.ImportFrom))
    return {name for node in imports for name in imported_names(node)}


def declared_public_names(tree: ast.Module) -> list[str] | None:
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if isinstance(target, ast.Name) and target.id == "__all__" and node.value is not None:
                return [str(name) for name in ast.literal_eval(node.value)]
    return None


def documented_nodes(tree: ast.Module, public: set[str]) -> Iterator[tuple[str, ast.ClassDef | ast.FunctionDef]]:
    """Public functions and classes of a module, and the classes' public methods."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name in public:
            yield node.name, node
            inside = node.body if isinstance(node, ast.ClassDef) else []
            for method in (part for part in inside if isinstance(part, ast.FunctionDef)):
                if not method.name.startswith("_") and not overloads(method):
                    yield f"{node.name}.{method.name}", method


def overloads(function: ast.FunctionDef) -> bool:
    """Whether another definition carries the documentation: an overload, a setter, or an inherited meaning."""
    decorators = [ast.unparse(decorator) for decorator in function.decorator_list]
    return any(name in {"overload", "override", "typing.overload"} or name.endswith(".setter") for name in decorators)


def names_in(tree: ast.AST) -> set[str]:
    """Names, attributes and imports of a tree, and strings that could be names."""
    found = set()
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.Constant(value=str(name)):
                found.add(name)
            case ast.alias(name=name):
                found.add(name.rpartition(".")[2])
    return found


def uses_of_definitions() -> dict[str, set[str]]:
    """Name of every function, class and value at the top of a module -> the names in its definition."""
    uses: dict[str, set[str]] = {}
    for node in (node for path in modules() for node in parse(path).body):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            defined = {node.name}
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            defined = names_in(node.targets[0] if isinstance(node, ast.Assign) else node.target) - {"__all__"}
        else:
            continue
        for name in defined:
            uses.setdefault(name, set()).update(names_in(node))
    return uses


def test_every_public_name_is_exercised():
    """Tests say a name, or say one whose definition uses it, at any number of steps. Names are taken by their words."""
    uses = uses_of_definitions()
    texts = (path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py"))
    exercised, found = set(), {word for text in texts for word in re.findall(r"\w+", text)}
    while found:
        exercised |= found
        found = {used for name in found for used in uses.get(name, ())} - exercised
    public = {path: set(declared_public_names(parse(path)) or ()) for path in modules()}
    assert not {str(path): names - exercised for path, names in public.items() if names - exercised}


def test_test_folders_are_those_of_the_sources():
    folders = {path.relative_to(ROOT / "tests").parent for path in (ROOT / "tests").rglob("test_*.py")}
    assert not [str(folder) for folder in folders if not (ROOT / folder).is_dir()]
    assert not list((ROOT / "tests").rglob("__init__.py"))


def test_files_can_be_read_at_once():
    python_files = [path for folder in ("benchmarks", "examples", "tests", "tools", *FOLDERS)
                    for path in (ROOT / folder).rglob("*.py")]  # fmt: skip
    lengths = {str(path): len(path.read_text(encoding="utf-8").splitlines()) for path in python_files}
    assert not {path: length for path, length in lengths.items() if length > MAX_LINES}


def test_imports_go_one_way():
    offenders = []
    for path in modules():
        for name in imported_names(parse(path)):
            top, _, rest = name.partition(".")
            if name.startswith(".") or top in MAY_IMPORT:
                offenders.append(f"{path} imports {name}: write the whole name, from windrow on")
            elif top == "windrow" and rest.partition(".")[0] not in MAY_IMPORT[path.parts[0]]:
                offenders.append(f"{path} imports {name}: {path.parts[0]} must not know it")
    assert not offenders


def test_heavy_libraries_are_imported_where_they_are_used():
    offenders = []
    for path in modules():
        allowed = LIGHT_LIBRARIES | {"windrow"} | sys.stdlib_module_names
        if path.stem.endswith("_kernels"):
            allowed |= KERNEL_LIBRARIES
        allowed |= {library for adapter, library in ADAPTERS.items() if path.as_posix() == adapter}
        heavy = {name.partition(".")[0] for name in imported_at_once(path)} - allowed
        offenders += [f"{path} imports {name} at once: import it inside the function" for name in heavy]
    assert not offenders


def test_adapters_are_imported_inside_functions():
    adapters = {f"windrow.{file.removesuffix('.py').replace('/', '.')}" for file in ADAPTERS}
    others = [path for path in modules() if path.as_posix() not in ADAPTERS]
    assert not [str(path) for path in others if imported_at_once(path) & adapters]


def test_options_are_checked():
    found = [(path, node) for path in modules() for node in parse(path).body if isinstance(node, ast.ClassDef)]
    options = [(path, node) for path, node in found if node.name.endswith(("Options", "Overrides", "Recipe"))]
    assert options
    assert not [
        f"{path}: {node.name} is no @checked_dataclass: its settings are not checked"
        for path, node in options
        if [ast.unparse(decorator) for decorator in node.decorator_list] != ["checked_dataclass"]
    ]


def test_modules_say_what_is_public_and_document_it():
    offenders = []
    for path in modules():
        tree = parse(path)
        public = declared_public_names(tree)
        if public is None and not path.name.startswith("__"):
            offenders.append(f"{path} has no __all__")
        if not ast.get_docstring(tree):
            offenders.append(f"{path} has no docstring")
        nodes = documented_nodes(tree, set(public or ()))
        offenders += [f"{path}: {name} has no docstring" for name, node in nodes if not ast.get_docstring(node)]
    assert not offenders
