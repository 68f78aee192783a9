"""dvc.yaml against the code: a stage reruns when, and only when, something that it uses changed."""

from __future__ import annotations

import ast
from pathlib import Path

import grimp
import pytest

from tests.closure import (
    ROOT,
    DeclaredStage,
    declared_stages,
    guarded_sections,
    import_graph,
    imported_files,
    sections_read,
)

STAGE_NAMES = (
    "target", "prompts", "generate", "validate", "reassemble", "vocab", "extract", "train", "export", "evaluate", "engine", "report",
)  # fmt: skip
DOMAIN = ("target", "drafter", "serving", "referee")
FREE_OF_RESULTS = {"server", "compute"}
TORCH_FREE = ("prompts", "generate", "validate", "reassemble", "vocab", "report")

STAGES = declared_stages()
GRAPH = import_graph()
SCRIPTS = sorted({stage.script for stage in STAGES})


def test_stages_stand_in_pipeline_order() -> None:
    order = list(dict.fromkeys(stage.name.partition("@")[0] for stage in STAGES))
    assert order == list(STAGE_NAMES)


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name)
def test_code_dependencies_are_the_import_closure(stage: DeclaredStage) -> None:
    needed = imported_files(stage.script, GRAPH) | {str(stage.script.relative_to(ROOT))}
    covered = {path for path in needed for dep in stage.code if path == dep or path.startswith(dep + "/")}
    assert needed - covered == set(), "imported but not in dvc.yaml"
    unneeded = [
        dep for dep in stage.code if not any(path == dep or path.startswith(dep + "/") for path in needed)
    ]
    assert unneeded == [], "in dvc.yaml but never imported"
    for dep in stage.code:
        files = {str(path.relative_to(ROOT)) for path in (ROOT / dep).rglob("*.py") if path.stat().st_size}
        assert files <= needed, f"{dep}: files of this folder that the stage does not import"


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name)
def test_declared_sections_are_those_that_the_script_reads(stage: DeclaredStage) -> None:
    assert stage.sections == sections_read(stage.script) - FREE_OF_RESULTS
    assert guarded_sections(stage.script) == stage.sections


def test_numerics_are_a_dependency_where_they_decide_bits() -> None:
    for stage in STAGES:
        computes = any(
            GRAPH_WITH_EXTERNALS.find_modules_directly_imported_by(module) & {"torch", "transformers"}
            for module in GRAPH_WITH_EXTERNALS.modules
            if module.startswith("eyas") and _file_of(module) in imported_files(stage.script, GRAPH)
        )
        assert ("requirements/numerics.txt" in stage.data) == computes, stage.name


GRAPH_WITH_EXTERNALS = grimp.build_graph(
    "eyas", cache_dir=None, exclude_type_checking_imports=True, include_external_packages=True
)


def _file_of(module: str) -> str:
    base = Path("src", *module.split("."))
    return str(base / "__init__.py" if (ROOT / base).is_dir() else base.with_suffix(".py"))


def test_torch_is_imported_only_where_tensors_are_computed() -> None:
    for stage in STAGES:
        if stage.name.partition("@")[0] in TORCH_FREE:
            for file in imported_files(stage.script, GRAPH):
                module = (
                    file.removeprefix("src/").removesuffix(".py").replace("/", ".").removesuffix(".__init__")
                )
                externals = GRAPH_WITH_EXTERNALS.find_modules_directly_imported_by(module)
                assert not externals & {"torch", "lightning"}, (
                    f"{stage.name} would import torch through {file}"
                )


def test_imports_point_one_way() -> None:
    """Stage packages use domain and base, domain uses base; never sideways between stage packages."""
    rank = dict.fromkeys((*STAGE_NAMES, "doctor"), 2) | dict.fromkeys(DOMAIN, 1) | {"cli": 3}
    problems = []
    for module in GRAPH.modules:
        for imported in GRAPH.find_modules_directly_imported_by(module):
            ours, theirs = (name.split(".")[1] if "." in name else "" for name in (module, imported))
            if ours == theirs:
                continue
            above = rank.get(theirs, 0) > rank.get(ours, 0)
            sideways = ours in STAGE_NAMES and theirs in STAGE_NAMES and "target" not in (ours, theirs)
            if above or sideways:
                problems.append(f"{module} imports {imported}")
    assert problems == []


def test_init_files_are_empty() -> None:
    full = [str(path) for path in (ROOT / "src").rglob("__init__.py") if path.stat().st_size]
    assert full == []


def test_no_hidden_imports() -> None:
    for path in (ROOT / "src").rglob("*.py"):
        names = {
            getattr(node.func, "attr", getattr(node.func, "id", ""))
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Call)
        }
        assert not names & {"import_module", "__import__"}, (
            f"{path}: an import that no dependency test can see"
        )


def test_no_persistent_outputs_and_only_reports_outside_the_cache() -> None:
    from dvc.repo import Repo

    with Repo(str(ROOT)) as repo:
        outs = [out for stage in repo.index.stages for out in stage.outs]
    for out in outs:
        assert not out.persist, f"{out}: persist loses data (docs/architecture.md)"
        assert out.use_cache or out.def_path.startswith("reports/"), (
            f"{out}: uncached outputs are for small reports only"
        )
