"""Where files really are."""

from policyengine.recordings.places import Places


def test_a_place_is_what_resolve_says_with_links_to_files_and_folders(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "run.json").write_text("{}", encoding="utf-8")
    (tmp_path / "folder").symlink_to("real")
    (tmp_path / "real" / "link.json").symlink_to("run.json")
    places = Places()
    for name in ("real/run.json", "folder/run.json", "real/link.json", "folder/link.json", "folder/../real/run.json"):
        assert places.of(tmp_path / name) == (tmp_path / name).resolve()
    assert places.of(tmp_path / "folder" / "nothing.json") == tmp_path.resolve() / "real" / "nothing.json"
