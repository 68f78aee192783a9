"""What a stage script imports and reads, found in its source: compared with dvc.yaml by test_dependencies.py."""

from __future__ import annotations

import ast
import shlex
from dataclasses import dataclass
from pathlib import Path

import grimp
from dvc.dependency.param import ParamsDependency
from dvc.repo import Repo
from dvc.stage import PipelineStage

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class DeclaredStage:
    """A stage of dvc.yaml, resolved."""

    name: str
    script: Path
    code: list[str]
    data: list[str]
    sections: set[str]


def declared_stages() -> list[DeclaredStage]:
    with Repo(str(ROOT)) as repo:
        return [_declared(stage) for stage in repo.index.stages if isinstance(stage, PipelineStage)]


def _declared(stage: PipelineStage) -> DeclaredStage:
    words = shlex.split(stage.cmd)
    scripts = [word for word in words if word.endswith(".py")]
    assert words[0] == "exec", f"{stage.addressing}: without exec a killed dvc leaves the stage running"
    assert len(scripts) == 1, f"{stage.addressing}: one script per stage, found {scripts}"
    params: set[str] = set()
    paths = []
    for dependency in stage.deps:
        if isinstance(dependency, ParamsDependency):
            params |= set(dependency.params)
        else:
            paths.append(dependency.def_path)
    return DeclaredStage(
        name=stage.addressing,
        script=ROOT / scripts[0],
        code=[path for path in paths if path.startswith(("src/", "stages/"))],
        data=[path for path in paths if not path.startswith(("src/", "stages/"))],
        sections=params,
    )


def import_graph() -> grimp.ImportGraph:
    return grimp.build_graph("eyas", cache_dir=None, exclude_type_checking_imports=True)


def imported_files(script: Path, graph: grimp.ImportGraph) -> set[str]:
    """Every file of the repository that runs when the script is imported; empty __init__.py files are left out."""
    todo = [name for name in _roots(script) if name in graph.modules]
    seen: set[str] = set()
    while todo:
        module = todo.pop()
        if module in seen:
            continue
        seen.add(module)
        todo.extend(graph.find_modules_directly_imported_by(module))
        if "." in module:
            todo.append(module.rpartition(".")[0])
    files = {_file(module) for module in seen}
    return {path for path in files if (ROOT / path).stat().st_size > 0}


def _roots(script: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(script.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module)
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def _file(module: str) -> str:
    base = Path("src", *module.split("."))
    return str(base / "__init__.py" if (ROOT / base).is_dir() else base.with_suffix(".py"))


def sections_read(script: Path) -> set[str]:
    """What the script reads of params.yaml: sections, and `section.key` where it reads only some keys of one."""
    sections: set[str] = set()
    for node in ast.walk(ast.parse(script.read_text())):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", None)
        if name == "load_datasets":
            sections.add("datasets")
        if name == "load_section":
            argument = node.args[0]
            assert isinstance(argument, ast.Constant), f"{script}: load_section needs a literal section name"
            sections.add(str(argument.value))
        if name == "read_sections":
            sections |= {str(ast.literal_eval(argument)) for argument in node.args}
        if name == "load_keys":
            section, keys = ast.literal_eval(node.args[0]), ast.literal_eval(node.args[1])
            sections |= {f"{section}.{key}" for key in keys}
    return sections


def guarded_sections(script: Path) -> set[str]:
    """Constant names given to Guard.start in the script."""
    for node in ast.walk(ast.parse(script.read_text())):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "start"
            and isinstance(node.func.value, ast.Name)
            and node.func.value.id == "Guard"
        ):
            return {str(argument.value) for argument in node.args if isinstance(argument, ast.Constant)}
    return set()
