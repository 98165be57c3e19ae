"""The rules of style as pure functions: from source text to complaints; empty if all is well."""

import ast
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache

FUNCTION_LINES_MAX = 70

# Which package may import which. No other package may import infra.
DIRECTIONS = {
    "schemas": frozenset({"schemas"}),
    "producers": frozenset({"producers", "schemas"}),
    "stream_processors": frozenset({"stream_processors", "schemas"}),
    "sinks": frozenset({"sinks", "schemas"}),
    "infra": frozenset({"infra", "schemas", "producers", "stream_processors", "sinks"}),
}
# The one exception: the client may ask the judge's own pure rules. Its modules import them lazily:
# `test_importing_the_client_loads_the_core_dependencies_only` looks at what an import loads.
_ALLOWED_ROOMS = {"producers": "sessionary.stream_processors.core."}
# Modules with clocks, randomness, I/O or logging: a pure module must not import them.
_CLOCK_AND_CHANCE = {"random", "secrets", "time"}
_CONCURRENCY = {"asyncio", "concurrent", "multiprocessing", "threading"}
_FILES = {"logging", "os", "pathlib", "select", "shutil", "signal", "subprocess", "sys", "tempfile"}
_NETWORK = {"http", "requests", "socket", "ssl", "urllib"}
_SHELL = {"aiohttp", "aiokafka", "chdb", "clickhouse_connect", "confluent_kafka", "faust", "mode", "prometheus_client"}
IMPURE_MODULES = frozenset(_CLOCK_AND_CHANCE | _CONCURRENCY | _FILES | _NETWORK | _SHELL | {"rocksdict"})
IMPURE_CALLS = frozenset({"open", "print", "input"})
IMPURE_METHODS = frozenset({"now", "utcnow", "today", "uuid1", "uuid4", "urandom", "perf_counter", "monotonic"})


@cache
def nodes(tree: ast.Module) -> tuple[ast.AST, ...]:
    """Return all nodes of a module: it is walked once, and each rule looks at what was found."""
    return tuple(ast.walk(tree))


def long_functions(tree: ast.Module) -> list[str]:
    """Return functions above the limit, decorators and docstring included."""
    found = []
    for node in nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            lines = (node.end_lineno or node.lineno) - first + 1
            if lines > FUNCTION_LINES_MAX:
                found.append(f"line {first}: {node.name} has {lines} lines, more than {FUNCTION_LINES_MAX}")
    return found


def imported_names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield line and full name of every import, including those inside functions."""
    for node in nodes(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)


def wrong_directions(tree: ast.Module, package: str) -> list[str]:
    """Return forbidden imports of a module of `package` (schemas, producers, …)."""
    found = []
    for line, name in imported_names(tree):
        parts = name.split(".")
        if name.startswith("."):
            found.append(f"line {line}: relative import {name}")
        elif package in _ALLOWED_ROOMS and name.startswith(_ALLOWED_ROOMS[package]):
            continue
        elif parts[0] == "tests" or (parts[0] == "sessionary" and parts[1] not in DIRECTIONS[package]):
            found.append(f"line {line}: {package} imports {name}")
    return found


def impurities(tree: ast.Module, allowed: frozenset[str] = frozenset()) -> list[str]:
    """Return what makes a module impure: imports except those in `allowed`, and calls."""
    found = [
        f"line {line}: imports {name}"
        for line, name in imported_names(tree)
        if name.split(".")[0] in IMPURE_MODULES - allowed or name.startswith("importlib.resources")
    ]
    for node in nodes(tree):
        if isinstance(node, ast.Call):
            match node.func:
                case ast.Name(id=name) if name in IMPURE_CALLS:
                    found.append(f"line {node.lineno}: calls {name}")
                case ast.Attribute(attr=name) if name in IMPURE_METHODS and not _exempt(node.func, allowed):
                    found.append(f"line {node.lineno}: calls {name}")
    return found


def _exempt(call: ast.expr, allowed: frozenset[str]) -> bool:
    owner = call.value if isinstance(call, ast.Attribute) else None
    return isinstance(owner, ast.Name) and owner.id in allowed


def exported_names(tree: ast.Module) -> list[str] | None:
    """Return the names in `__all__`, or None if there is no such list."""
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id="__all__")], value=ast.List() | ast.Tuple() as value):
                return [str(ast.literal_eval(element)) for element in value.elts]
    return None


def wrong_exports(tree: ast.Module) -> list[str]:
    """Return faults of `__all__`: order (CONSTANTS, Classes, functions), duplicates, unknowns."""
    names = exported_names(tree)
    if names is None:
        return []
    found = [] if names == sorted(set(names), key=_export_order) else ["__all__ is not sorted, or has duplicates"]
    defined = _defined_names(tree)
    return found + [f"__all__ names {name}, which is not defined" for name in names if name not in defined]


def _export_order(name: str) -> tuple[int, str]:
    return (0 if name.isupper() else 1 if name[0].isupper() else 2, name)


def _defined_names(tree: ast.Module) -> set[str]:
    names: set[str] = set()
    for node in nodes(tree):
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                names.add(name)
            case ast.Name(id=name, ctx=ast.Store()):
                names.add(name)
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                names |= {alias.asname or alias.name for alias in aliases}
    return names


TEXT_RUNNERS = frozenset({"exec", "eval", "compile"})


def text_runners(tree: ast.Module) -> list[str]:
    """Return the uses of the functions that turn text into code, `re.compile` left out."""
    found = []
    for node in nodes(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(value=ast.Name(id="builtins"), attr=name) if name in TEXT_RUNNERS:
                found.append(f"line {node.lineno}: uses {name}")
    return found


_TRANSITION_ID = re.compile(r"T\d\d")


def transition_ids(tree: ast.Module) -> list[str]:
    """Return the literals that name a transition: outside its table nothing may depend on one."""
    return [
        f"line {node.lineno}: {node.value!r} names a transition"
        for node in nodes(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _TRANSITION_ID.fullmatch(node.value)
    ]


_BRANCH = re.compile(r"^(?P<indent>[ │]*)(?:├──|└──) (?P<name>\w+)")


def drawn_tree(docstring: str) -> dict[str, str]:
    """Return `{class: parent}` of a tree drawn with ├── and └──; empty without one."""
    parents: dict[str, str] = {}
    path: list[str] = []
    root = ""
    for line in docstring.splitlines():
        branch = _BRANCH.match(line)
        if branch is None:
            if not path and line.strip():
                root = re.split(r"\W", line.strip())[0]
            continue
        if not path:
            path, margin = [root], len(branch["indent"])
        depth = (len(branch["indent"]) - margin) // 4 + 1
        del path[depth:]
        parents[branch["name"]] = path[-1]
        path.append(branch["name"])
    return parents


def wrong_error_tree(tree: ast.Module) -> list[str]:
    """Return the differences between an errors module's classes and the tree in its docstring."""
    drawn = drawn_tree(ast.get_docstring(tree) or "")
    if not drawn:
        return ["no tree of errors is drawn in the docstring"]
    classes = {
        node.name: [ast.unparse(base).rpartition(".")[2] for base in node.bases]
        for node in tree.body
        if isinstance(node, ast.ClassDef)
    }
    roots = set(drawn.values()) - set(drawn)
    found = [f"{name} is not drawn" for name in classes if name not in drawn and name not in roots]
    local, defined = set(classes), _defined_names(tree)
    for name, parent in drawn.items():
        if name in local and parent not in classes[name]:
            found.append(f"{name} is drawn below {parent}, but its bases are {', '.join(classes[name])}")
        elif name not in local and name not in defined:
            found.append(f"{name} is drawn, but not defined")
    return found


# What no tracked file may contain, and why.
FORBIDDEN = {
    "a path of one machine": re.compile(r"(?<![\w.])/(work|root|home|Users)/\w"),
    "a registry's address": re.compile(r"pypi\.org|pythonhosted\.org|repo1?\.maven|maven\.org|registry\.npmjs", re.I),
    "a note on who wrote it": re.compile(r"co-authored-by|generated (by|with) (an? )?(ai|assistant)\b", re.I),
    "a vague word for a person": re.compile(r"\b(nobody|somebody|whoever)\b", re.I),
    "unfinished work": re.compile(r"\b(TODO|FIXME|XXX)\b"),
}


def forbidden_words(text: str) -> list[str]:
    """Return the lines with something that no file may contain."""
    if not any(pattern.search(text) for pattern in FORBIDDEN.values()):
        return []
    return [
        f"line {number}: {what}: {line.strip()[:80]}"
        for number, line in enumerate(text.splitlines(), 1)
        for what, pattern in FORBIDDEN.items()
        if pattern.search(line)
    ]


# Names

BARE_ED_NAMES_MAX = 15
_NOT_PARTICIPLES = frozenset({"feed", "need", "seed", "speed"})


def function_names(tree: ast.Module) -> set[str]:
    """Return the names of functions and methods, without outer underscores and without dunders."""
    return {
        node.name.strip("_")
        for node in nodes(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if not (node.name.startswith("__") and node.name.endswith("__"))
    }


def bare_ed_names(names: Iterable[str]) -> list[str]:
    """Return the names that are one bare participle, as `noted`, sorted."""
    return sorted(name for name in names if name.endswith("ed") and "_" not in name and name not in _NOT_PARTICIPLES)


DOCUMENT_COLUMNS_MAX = 100
_LINK = re.compile(r"\]\(|^\[[^]]+\]: |https?://")


def long_document_lines(text: str) -> list[str]:
    """Return lines of Markdown above the limit, except tables, code blocks and links."""
    found = []
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        exempt = fenced or line.startswith(("    ", "|")) or _LINK.search(line)
        if len(line) > DOCUMENT_COLUMNS_MAX and not exempt:
            found.append(f"line {number}: {len(line)} columns, more than {DOCUMENT_COLUMNS_MAX}")
    return found


# Folders of a package

_MAP_LINE = re.compile(r"^ {4}(?P<name>\w+)/? {2,}\S", re.MULTILINE)


def mapped_names(docstring: str) -> set[str]:
    """Return the names with which the lines of a package's map begin."""
    return {match["name"] for match in _MAP_LINE.finditer(docstring)}


def imported_modules(tree: ast.Module, known: Collection[str]) -> Iterator[str]:
    """Yield those of the `known` modules that a module imports, also inside functions."""
    for node in nodes(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                if full in known:
                    yield full
                elif node.module in known:
                    yield node.module


def folder_graph(imports: Mapping[str, Collection[str]], package: str) -> dict[str, set[str]]:
    """Return which child of a package imports which: modules as they are, sub-packages as one.

    `imports` has each module's imports by full names; a package's own `__init__` is left out.
    """
    prefix = f"{package}."
    graph: dict[str, set[str]] = {}
    for name, targets in imports.items():
        for target in targets:
            if name.startswith(prefix) and target.startswith(prefix):
                child, other = (full.removeprefix(prefix).split(".")[0] for full in (name, target))
                if child != other:
                    graph.setdefault(child, set()).add(other)
    return graph


def circle_in(graph: Mapping[str, Collection[str]]) -> list[str]:
    """Return the nodes of one circle with the first one repeated at the end; empty without one."""
    done: set[str] = set()

    def walk(node: str, path: list[str]) -> list[str]:
        if node in path:
            return [*path[path.index(node) :], node]
        if node in done:
            return []
        for target in sorted(graph.get(node, ())):
            if found := walk(target, [*path, node]):
                return found
        done.add(node)
        return []

    return next((found for node in sorted(graph) if (found := walk(node, []))), [])


# Shapes: chains of classes, privates, sizes of modules

CHAIN_MAX = 3
MODULE_LINES_MAX = 600
SMALL_MODULE_LINES = 60
# Roots of trees that are meant to be deep.
_DEEP_ROOTS = frozenset({"EnvSettings", "BaseException", "Exception", "Warning"})
_REASON = re.compile(r"\bone (module|file|class)\b.{0,20}\b(because|since|as|so that)\b", re.IGNORECASE | re.DOTALL)
_OF_NAMED_TUPLES = frozenset({"_asdict", "_field_defaults", "_fields", "_make", "_replace"})
_CONSTANT = re.compile(r"_[A-Z][A-Z0-9_]*")  # librdkafka's names of errors

Class = tuple[str, str]  # module and name


def bases_of(trees: Mapping[str, ast.Module]) -> dict[Class, list[Class]]:
    """Return the bases of each class of the modules, by full names; a foreign one has no module."""
    defined = {name: {node.name: node for node in _classes(tree)} for name, tree in trees.items()}
    imported = {name: _imported_from(tree) for name, tree in trees.items()}

    def find(module: str, name: str) -> Class:
        if name in defined[module]:
            return module, name
        source, original = imported[module].get(name, ("", name))
        return find(source, original) if source in trees and source != module else ("", original)

    def find_base(module: str, base: ast.expr) -> Class:
        if isinstance(base, ast.Subscript):
            base = base.value
        if isinstance(base, ast.Attribute):
            package, name = imported[module].get(ast.unparse(base.value), ("", ""))
            source = f"{package}.{name}"
            return find(source, base.attr) if source in trees else ("", base.attr)
        return find(module, ast.unparse(base))

    return {
        (module, name): [find_base(module, base) for base in node.bases]
        for module, classes in defined.items()
        for name, node in classes.items()
    }


def _classes(tree: ast.Module) -> Iterator[ast.ClassDef]:
    yield from (node for node in nodes(tree) if isinstance(node, ast.ClassDef))


def _imported_from(tree: ast.Module) -> dict[str, tuple[str, str]]:
    return {
        alias.asname or alias.name: (node.module, alias.name)
        for node in nodes(tree)
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }


def long_chains(bases: Mapping[Class, list[Class]]) -> dict[str, int]:
    """Return the classes whose chain of own classes is too long, with its length.

    Errors and settings are left out: their trees are drawn, and a role's settings extend others.
    """

    def ancestors(name: Class) -> set[Class]:
        return {name}.union(*(ancestors(base) for base in bases.get(name, ())))

    def length(name: Class) -> int:
        return 1 + max((length(base) for base in bases[name] if base in bases), default=0)

    return {
        name[1]: length(name)
        for name in bases
        if length(name) > CHAIN_MAX and not {base for _, base in ancestors(name)} & _DEEP_ROOTS
    }


def foreign_privates(tree: ast.Module) -> list[str]:
    """Return where a module uses what another module's object or module keeps for itself.

    What a class of the module itself defines may be used in the whole module. An underscore is part
    of the public names of a `NamedTuple`'s methods, of `os._exit` and of librdkafka's errors.
    """
    own = _own_privates(tree)
    found = []
    for node in nodes(tree):
        if isinstance(node, ast.ImportFrom):
            names = [alias.name for alias in node.names if _is_private(alias.name)]
            found += [f"line {node.lineno}: imports {name}" for name in names]
        elif isinstance(node, ast.Attribute) and _is_private(node.attr) and node.attr not in own:
            text = ast.unparse(node)
            if ast.unparse(node.value) not in ("self", "cls", "super()") and text != "os._exit":
                found.append(f"line {node.lineno}: {text}")
    return found


def _is_private(name: str) -> bool:
    public = name in _OF_NAMED_TUPLES or name.startswith("__") or _CONSTANT.fullmatch(name)
    return name.startswith("_") and not public


def _own_privates(tree: ast.Module) -> set[str]:
    found: set[str] = set()
    for cls in _classes(tree):
        for node in ast.walk(cls):
            match node:
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                    found.add(name)
                case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name, ctx=ast.Store()):
                    found.add(name)
                case ast.AnnAssign(target=ast.Name(id=name)) | ast.Name(id=name, ctx=ast.Store()):
                    found.add(name)
    return found


def long_modules(text: str, tree: ast.Module) -> list[str]:
    """Return a complaint if a module is long, and its docstring does not say why it is one."""
    lines = text.count("\n")
    if lines <= MODULE_LINES_MAX or _REASON.search(ast.get_docstring(tree) or ""):
        return []
    return [f"{lines} lines: its docstring must say why this is one module, because … or so that …"]


def small_modules(lines: Mapping[str, int], imports: Mapping[str, Collection[str]]) -> dict[str, str]:
    """Return the small modules that one other module alone imports, each with that one."""
    importers: dict[str, set[str]] = {name: set() for name in lines}
    for name, targets in imports.items():
        for target in targets:
            if target in importers and target != name:
                importers[target].add(name)
    return {
        name: next(iter(others))
        for name, others in importers.items()
        if len(others) == 1 and lines[name] < SMALL_MODULE_LINES
    }


def missing_patched_names(tree: ast.Module, known: Mapping[str, Collection[str]]) -> Iterator[str]:
    """Yield the names that a test patches in a module that does not have them.

    `known`: the names at the top of each module, by its dotted name. A patch by a string would fail
    only when its test runs, which may be weeks later.
    """
    modules: dict[str, str] = {}  # by the name under which a test has them
    for node in nodes(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            modules |= {each.asname or each.name: f"{node.module}.{each.name}" for each in node.names}
        elif isinstance(node, ast.Import):
            modules |= {each.asname: each.name for each in node.names if each.asname}
    for node in nodes(tree):
        match node:
            case ast.Call(
                func=ast.Attribute(attr="setattr"), args=[ast.Name(id=module), ast.Constant(value=str(name)), *_]
            ) if (names := known.get(modules.get(module, "-"))) is not None and name not in names:
                yield f"line {node.lineno}: {modules[module]} has no {name}"


def top_names(tree: ast.Module) -> set[str]:
    """Return the names that a module defines or imports at its top."""
    found = set[str]()
    for node in tree.body:
        for each in ast.walk(node) if isinstance(node, ast.If | ast.Try) else [node]:
            match each:
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                    found.add(name)
                case ast.Import(names=names) | ast.ImportFrom(names=names):
                    found |= {one.asname or one.name.partition(".")[0] for one in names}
                case ast.Assign(targets=targets):
                    found |= {one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)}
                case ast.AnnAssign(target=ast.Name(id=name)):
                    found.add(name)
    return found
