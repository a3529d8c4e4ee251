"""Drop-in folders."""

from __future__ import annotations

import os
import sys

import pytest

from policyengine.errors import ExtensionError
from policyengine.plugins.folder import extension_files, folder_digest, load_file
from policyengine.plugins.registry import Registry, discover


def registry(folder) -> Registry:
    return Registry(sources=discover_sources(folder))


def discover_sources(folder):
    return discover(entry_points=False, folders=[folder], builtins="tests_no_builtins").sources


@pytest.fixture(autouse=True)
def no_builtins(monkeypatch):
    module = type(sys)("tests_no_builtins")
    module.BUILTIN = ()
    monkeypatch.setitem(sys.modules, "tests_no_builtins", module)


def test_every_python_file_is_loaded_in_the_order_of_its_name(tmp_path, extension_source):
    for stem in ("b", "a", "c-with-dash"):
        (tmp_path / f"{stem}.py").write_text(extension_source(f"local.{stem}"))
    for other in ("_private.py", ".#a.py", "notes.txt", "a.py~"):
        (tmp_path / other).write_text("raise RuntimeError")
    (tmp_path / "folder.py").mkdir()
    assert [path.name for path in extension_files(tmp_path)] == ["a.py", "b.py", "c-with-dash.py"]
    assert registry(tmp_path).all()[0].name == "local.a"
    assert [found.name for found in registry(tmp_path).all()] == ["local.a", "local.b", "local.c-with-dash"]


def test_what_is_found_says_where_it_stands(tmp_path, extension_source, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "guards").mkdir()
    (tmp_path / "guards" / "quiet.py").write_text(extension_source("local.quiet"))
    found = registry(tmp_path / "guards").get("local.quiet")
    assert (found.origin, found.distribution, found.version, found.builtin) == (
        os.path.join("guards", "quiet.py"),
        "",
        "",
        False,
    )
    assert found.hooks == ("after_iteration",)


def test_no_bytecode_is_written(tmp_path, extension_source):
    (tmp_path / "a.py").write_text(extension_source("local.a"))
    load_file(tmp_path / "a.py")
    assert [path.name for path in tmp_path.iterdir()] == ["a.py"]


def test_an_edit_of_equal_length_at_the_same_time_is_seen(tmp_path, extension_source):
    path = tmp_path / "a.py"
    path.write_text(extension_source("local.one"))
    stamp = path.stat()
    (first,) = load_file(path)
    path.write_text(extension_source("local.two"))
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    (second,) = load_file(path)
    assert (first.name, second.name) == ("local.one", "local.two")
    assert first.cls.name == "local.one"


def test_unchanged_content_gives_the_same_class_and_equal_files_do_not(tmp_path, extension_source):
    for stem in ("a", "b"):
        (tmp_path / f"{stem}.py").write_text(extension_source("local.a"))
    assert load_file(tmp_path / "a.py")[0].cls is load_file(tmp_path / "a.py")[0].cls
    assert load_file(tmp_path / "a.py")[0].cls is not load_file(tmp_path / "b.py")[0].cls


def test_state_classes_with_postponed_annotations_work(tmp_path, extension_source):
    source = extension_source("local.a").replace("    name =", "    state = Seen\n    name =")
    state = "class Seen(msgspec.Struct):\n    by_tool: dict[str, Count] = {}\n"
    (tmp_path / "a.py").write_text(
        "from __future__ import annotations\nimport msgspec\n"
        "class Count(msgspec.Struct):\n    value: int = 0\n" + state + source
    )
    (found,) = load_file(tmp_path / "a.py")
    import msgspec

    assert msgspec.convert({"by_tool": {"x": {"value": 2}}}, found.cls.state).by_tool["x"].value == 2


@pytest.mark.parametrize(
    ("source", "line", "text"),
    [
        ("x = 1\nif x\n    pass\n", 2, "SyntaxError"),
        ("import math\n\nmath.sqrt('x')\n", 3, "TypeError"),
        ("\nimport no_such_module_anywhere\n", 2, "no_such_module_anywhere"),
        ("import json\njson.loads('{')\n", 2, "JSONDecodeError"),
        ("raise SystemExit(3)\n", 1, "SystemExit: 3"),
        ("import ast\n\n\nast.literal_eval('1 +')\n", 4, "SyntaxError"),
    ],
    ids=["syntax", "type", "import", "in a library", "exit", "syntax elsewhere"],
)
def test_a_broken_file_is_reported_with_file_and_line(tmp_path, monkeypatch, source, line, text):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.py").write_text(source)
    before = set(sys.modules)
    with pytest.raises(ExtensionError, match=text) as caught:
        load_file(tmp_path / "broken.py")
    assert caught.value.origin == f"broken.py:{line}"
    assert not [name for name in set(sys.modules) - before if "broken" in name]


@pytest.mark.parametrize("content", [b"\xff\xfe", b"x = '\xe9'\n", b"a\0b"], ids=["utf16", "latin1", "nul"])
def test_a_file_that_is_no_text_is_reported(tmp_path, content):
    (tmp_path / "broken.py").write_bytes(content)
    with pytest.raises(ExtensionError, match=r"broken\.py"):
        load_file(tmp_path / "broken.py")


def test_names_in_a_folder_need_a_dot_too(tmp_path, extension_source, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.py").write_text(extension_source("stall_detector"))
    with pytest.raises(ExtensionError, match=r"must have the form `vendor.name`") as caught:
        load_file(tmp_path / "a.py")
    assert caught.value.origin == "a.py:5"


def test_a_file_without_an_extension_is_reported(tmp_path):
    (tmp_path / "a.py").write_text("from policyengine.extension import Extension\n")
    with pytest.raises(ExtensionError, match="defines no extension"):
        load_file(tmp_path / "a.py")


def test_a_broken_file_is_an_error_only_for_names_nobody_else_provides(tmp_path, extension_source, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.py").write_text(extension_source("local.a"))
    (tmp_path / "broken.py").write_text("1 / 0\n")
    extensions = registry(tmp_path)
    assert extensions.get("local.a").name == "local.a"
    assert extensions.get("step_limit") is None
    with pytest.raises(ExtensionError, match=r"'local.b' \(broken.py:1\): cannot be imported: ZeroDivisionError"):
        extensions.get("local.b")
    assert [error.origin for error in extensions.problems()] == ["broken.py:1"]


def test_one_name_in_two_files_is_an_error_naming_both(tmp_path, extension_source, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for stem in ("a", "b"):
        (tmp_path / f"{stem}.py").write_text(extension_source("local.guard"))
    extensions = registry(tmp_path)
    with pytest.raises(ExtensionError, match=r"a\.py and b\.py.*more than once"):
        extensions.get("local.guard")
    assert extensions.all() == ()
    assert len(extensions.problems()) == 1


def test_a_missing_folder_is_an_error_at_once(tmp_path):
    with pytest.raises(ExtensionError, match="cannot be read"):
        registry(tmp_path / "nowhere")


def test_the_digest_of_folders_changes_with_names_and_contents_of_extension_files(tmp_path):
    assert folder_digest([]) == ""
    seen = [folder_digest([tmp_path])]
    (tmp_path / "a.py").write_text("x = 1\n")
    seen.append(folder_digest([tmp_path]))
    (tmp_path / "a.py").write_text("x = 2\n")
    seen.append(folder_digest([tmp_path]))
    (tmp_path / "a.py").rename(tmp_path / "b.py")
    seen.append(folder_digest([tmp_path]))
    assert len(set(seen)) == 4
    (tmp_path / "_private.py").write_text("x = 1\n")
    assert folder_digest([tmp_path]) == seen[-1]
