"""Demonstrations from NPZ and HDF5 files and LeRobot's folders: what they give, and what is refused by name."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from robolearn.errors import ConfigError
from robolearn.learners.demonstrations import npz
from robolearn.learners.demonstrations.demonstrations import Demonstrations, returns
from robolearn.learners.demonstrations.reading import Wanted, load
from robolearn.learners.preference import segments

POLICY = np.arange(10, dtype=np.float32).reshape(5, 2)
ACTION = np.array([[0.1], [0.2], [0.3], [0.4], [0.5]], np.float32)
REWARD = np.array([1, 2, 3, 4, 5], np.float32)
TERMINATED = np.array([False, True, False, False, False])
TRUNCATED = np.array([False, False, False, False, True])
WANTED = Wanted({"policy": 2}, 1)


def content(**changes: object) -> dict[str, object]:
    """Two episodes, of 2 steps (a failure) and of 3 (a time-out)."""
    arrays = {
        "schema": np.int64(1),
        "observations/policy": POLICY,
        "actions": ACTION,
        "rewards": REWARD,
        "terminated": TERMINATED,
        "truncated": TRUNCATED,
    }
    return {k: v for k, v in {**arrays, **changes}.items() if v is not None}


def npz_file(path: Path, **changes: object) -> str:
    np.savez(path, **content(**{k.replace("__", "/"): v for k, v in changes.items()}))
    return str(path)


def hdf5_file(path: Path, scale: float = 1.0) -> str:
    """The same, as robomimic writes it; the episodes have the numbers 10 and 9, so that 9 comes first."""
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs["env_args"] = json.dumps({"env_kwargs": {"control_freq": 20}})
        for number, rows in ((10, slice(2, 5)), (9, slice(0, 2))):
            demo = data.create_group(f"demo_{number}")
            demo["obs/left"], demo["obs/right"] = POLICY[rows, :1], POLICY[rows, 1]
            demo["actions"], demo["rewards"] = scale * ACTION[rows], REWARD[rows]
            demo["terminated"] = TERMINATED[rows]
    return str(path)


def lerobot_folder(path: Path, version: str, **meta: object) -> str:
    """The same: version 2 has one file an episode, version 3 one for both, whose rows are not in order here."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    (path / "meta").mkdir(parents=True)
    (path / "meta" / "info.json").write_text(json.dumps({"codebase_version": version, "fps": 50, **meta}))

    def write(file: str, rows: list[int]) -> None:
        table = pa.table(
            {
                "observation.state": pa.array(POLICY[rows].tolist(), pa.list_(pa.float32(), 2)),
                "action": pa.array(ACTION[rows].tolist(), pa.list_(pa.float32())),
                "next.reward": pa.array(REWARD[rows]),
                "episode_index": pa.array([0 if row < 2 else 1 for row in rows]),
                "frame_index": pa.array([row if row < 2 else row - 2 for row in rows]),
                "task": pa.array(["walk"] * len(rows)),
            }
        )
        (path / file).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, path / file)

    if version.startswith("v2"):
        write("data/chunk-000/episode_000000.parquet", [0, 1])
        write("data/chunk-000/episode_000001.parquet", [2, 3, 4])
    else:
        write("data/chunk-000/file-000.parquet", [4, 3, 2, 1, 0])
    return str(path)


def require_both_episodes(found: Demonstrations) -> None:
    assert found.lengths == (2, 3)
    assert found.observations["policy"].tolist() == POLICY.tolist()
    assert torch.equal(found.action, torch.from_numpy(ACTION))
    assert found.reward is not None
    assert found.reward.tolist() == [1, 2, 3, 4, 5]


# ---------------------------------------------------------------------------------------- what the readers give


def test_an_npz_file_gives_its_episodes_and_how_they_ended(tmp_path):
    found = load([npz_file(tmp_path / "a.npz")], WANTED)
    require_both_episodes(found)
    assert found.terminated.tolist() == [True, False]


def test_an_hdf5_file_gives_its_episodes_in_the_order_of_their_numbers(tmp_path):
    keys = {"policy": ("left", "right")}
    found = load([hdf5_file(tmp_path / "a.hdf5")], WANTED, keys)
    require_both_episodes(found)
    assert found.terminated.tolist() == [True, False]
    turned = load([str(tmp_path / "a.hdf5")], WANTED, {"policy": ("right", "left")})
    assert turned.observations["policy"].tolist() == POLICY[:, ::-1].tolist()


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
def test_a_lerobot_folder_gives_its_episodes_in_order(version, tmp_path):
    folder = lerobot_folder(tmp_path / "set", version)
    found = load([folder], WANTED, {"policy": ("observation.state",)})
    require_both_episodes(found)
    assert found.terminated.tolist() == [False, False]  # its files do not tell


def test_several_files_and_patterns_are_joined_and_each_is_read_once(tmp_path):
    for name in ("b", "a"):
        npz_file(tmp_path / f"{name}.npz", actions=ACTION + (name == "b"))
    found = load([str(tmp_path / "*.npz"), str(tmp_path / "a.npz")], WANTED)
    assert found.lengths == (2, 3, 2, 3)
    assert found.action.flatten().tolist() == pytest.approx(
        [0.1, 0.2, 0.3, 0.4, 0.5, 1.1, 1.2, 1.3, 1.4, 1.5]
    )


def test_rewards_and_optional_groups_that_one_file_lacks_are_left_out(tmp_path):
    first = npz_file(tmp_path / "a.npz", observations__critic=POLICY)
    second = npz_file(tmp_path / "b.npz", rewards=None)
    found = load([first, second], Wanted({"policy": 2, "critic": 2}, 1, optional=("critic",)))
    assert set(found.observations) == {"policy"}
    assert found.reward is None
    assert [("'critic'" in line, line.startswith("rewards"), "b.npz" in line) for line in found.notes] == [
        (True, False, True),
        (False, True, True),
    ]


def test_joint_targets_become_actions(tmp_path):
    wanted = Wanted({"policy": 2}, 1, scale=np.array([0.5]), offset=np.array([0.1]))
    found = load([npz_file(tmp_path / "a.npz")], wanted, action_kind="joint_target")
    # (0.1 - 0.1) / 0.5, (0.2 - 0.1) / 0.5, ...
    assert found.action.flatten().tolist() == pytest.approx([0.0, 0.2, 0.4, 0.6, 0.8], abs=1e-6)


def test_what_is_written_is_read_again(tmp_path):
    npz.write(tmp_path / "a.npz", {k: v for k, v in content().items() if k != "schema"})
    require_both_episodes(load([str(tmp_path / "a.npz")], WANTED))


def test_returns_are_discounted_and_known_where_little_can_follow():
    terminated = torch.tensor([True, False])
    found = Demonstrations({}, torch.zeros(7, 1), (2, 5), terminated, torch.tensor([1.0, 2, 1, 1, 1, 1, 1]))
    value, known = returns(found, gamma=0.5, scale=2.0)
    # 2 (1 + 0.5 * 2), 2 * 2; then 2 (1 + .5 + .25 + .125 + .0625), ..., 2.
    assert value.tolist() == pytest.approx([4, 4, 3.875, 3.75, 3.5, 3, 2])
    # What follows the time-out has the weight 0.5^5 = 0.031 in its first step, and 0.0625 > 0.05 in the second.
    assert known.tolist() == [True, True, True, False, False, False, False]


# ---------------------------------------------------------------------------------------- what is refused


def nan(array: np.ndarray) -> np.ndarray:
    out = array.copy()
    out.flat[3] = np.nan
    return out


BAD = [
    ({"observations__policy": nan(POLICY)}, "policy is not finite in row 1"),
    ({"actions": nan(ACTION)}, "actions is not finite in row 3"),
    ({"actions": ACTION[:4]}, "policy has 5 rows, the actions 4"),
    ({"actions": np.concatenate([ACTION, ACTION], 1)}, "2 columns, and this robot has 1 actuators"),
    ({"actions": 300 * ACTION}, "joint_target"),
    ({"observations__policy": POLICY[:, :1]}, "policy"),
    ({"observations__policy": None, "observations__state": POLICY}, "learner.keys.policy"),
    ({"truncated": np.zeros(5, bool)}, "does not end"),
    ({"terminated": None}, "terminated"),
    ({"schema": np.int64(9)}, "schema 9"),
    ({"actions": np.array([["a"]] * 5)}, "actions holds no numbers"),
    ({"actions": np.array([[None]] * 5, dtype=object)}, "pickle"),
    ({"observations__policy": np.zeros((5, 4, 4, 3), np.float32)}, "images"),
    ({"control_dt": np.float64(0.1)}, "task.control_dt=0.1"),
    ({"columns__policy": np.array(["x", "z"])}, "'z'"),
    ({"action_scale": np.array([2.0]), "action_offset": np.array([0.0])}, "action_scale"),
    ({"control_dt": np.zeros(0)}, "control_dt"),
    ({"control_dt": np.float64(np.nan)}, "control period is nan"),
    ({"control_dt": np.array(["fast"])}, "control_dt"),
    ({"action_scale": np.zeros(0)}, "action_scale"),
    ({"action_scale": np.ones((1, 1))}, "action_scale"),
    ({"action_offset": np.float64(1)}, "action_offset"),
    ({"action_offset": np.array([np.inf])}, "action_offset"),
    ({"actions": np.float32(1)}, "actions"),
    ({"observations__policy": np.float32(1)}, "policy"),
    ({"terminated": np.array(["yes"] * 5)}, "terminated"),
    (
        {"actions": ACTION[:0], "observations__policy": POLICY[:0], "rewards": REWARD[:0]}
        | {"terminated": TERMINATED[:0], "truncated": TRUNCATED[:0]},
        "no episode",
    ),
]


@pytest.mark.parametrize(("changes", "named"), BAD, ids=range(len(BAD)))
def test_a_file_that_does_not_fit_is_refused_by_name(changes, named, tmp_path):
    path = npz_file(tmp_path / "bad.npz", **changes)
    columns, units = {"policy": ("x", "y")}, {"scale": np.array([0.5]), "offset": np.array([0.0])}
    with pytest.raises(ConfigError, match=named) as caught:
        load([path], Wanted({"policy": 2}, 1, dt=0.02, columns=columns, **units))
    assert "bad.npz" in str(caught.value)


def test_files_that_are_no_demonstrations_are_refused_by_name(tmp_path):
    (tmp_path / "a.txt").write_text("x")
    (tmp_path / "a.npz").write_text("not a zip archive")
    (tmp_path / "a.hdf5").write_text("not HDF5 either")
    (tmp_path / "folder").mkdir()
    np.save(tmp_path / "single.npy", ACTION)
    (tmp_path / "single.npy").rename(tmp_path / "single.npz")
    for name in ("a.txt", "a.npz", "folder", "single.npz", "nowhere.npz", "no*thing.npz"):
        with pytest.raises(ConfigError, match=name.replace("*", r"\*")):
            load([str(tmp_path / name)], WANTED)
    pytest.importorskip("h5py")
    with pytest.raises(ConfigError, match=r"a\.hdf5"):
        load([str(tmp_path / "a.hdf5")], WANTED)


def test_a_pickled_array_is_not_loaded(tmp_path):
    ran = tmp_path / "ran"

    class Evil:
        def __reduce__(self):
            return Path.touch, (ran,)

    np.savez(
        tmp_path / "evil.npz", **content(actions=np.array([Evil()] * 5, dtype=object)), allow_pickle=True
    )
    with pytest.raises(ConfigError, match=r"evil\.npz"):
        load([str(tmp_path / "evil.npz")], WANTED)
    assert not ran.exists()


def test_other_versions_of_lerobot_and_ragged_rows_are_refused_by_name(tmp_path):
    with pytest.raises(ConfigError, match=r"v1\.6"):
        load([lerobot_folder(tmp_path / "old", "v1.6")], WANTED, {"policy": ("observation.state",)})
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    folder = Path(lerobot_folder(tmp_path / "ragged", "v3.0"))
    table = pq.read_table(folder / "data" / "chunk-000" / "file-000.parquet")
    ragged = pa.array([[1.0], [1.0], [1.0, 2.0], [1.0], [1.0]], pa.list_(pa.float32()))
    index = table.column_names.index("action")
    pq.write_table(
        table.set_column(index, "action", ragged), folder / "data" / "chunk-000" / "file-000.parquet"
    )
    with pytest.raises(ConfigError, match="action has rows of different widths"):
        load([str(folder)], WANTED, {"policy": ("observation.state",)})


def test_episodes_of_one_hdf5_file_hold_the_same(tmp_path):
    h5py = pytest.importorskip("h5py")
    path = hdf5_file(tmp_path / "a.hdf5")
    with h5py.File(path, "a") as file:
        del file["data/demo_10/obs/right"]
    with pytest.raises(ConfigError, match="obs/right"):
        load([path], WANTED, {"policy": ("left", "right")})
    # What is not asked for need not be alike.
    assert load([path], Wanted({"policy": 1}, 1), {"policy": ("left",)}).lengths == (2, 3)
    with pytest.raises(ConfigError, match="'up'") as caught:
        load([path], Wanted({"policy": 1}, 1), {"policy": ("up",)})
    assert "right" in str(caught.value)


def _replaced(name: str, value: object) -> Callable[[Any, Any], None]:
    def change(file: Any, h5py: Any) -> None:
        del file[name]
        if value is None:
            file.create_group(name)
        elif isinstance(value, str):
            file[name] = h5py.SoftLink(value)
        else:
            file[name] = value

    return change


HDF5 = [
    (_replaced("data/demo_9/actions", None), "demo_9"),
    (_replaced("data/demo_9/actions", np.float32(1)), "demo_9/actions"),
    (_replaced("data/demo_9/obs/left", np.float32(1)), "obs/left"),
    (_replaced("data/demo_9/obs/left", "/nowhere"), "obs/left"),
    (_replaced("data/demo_9/obs/left", None), "obs/left"),
    (_replaced("data/demo_9/obs", "/nowhere"), "demo_9"),
    (_replaced("data/demo_9/rewards", None), "demo_9/rewards"),
    (_replaced("data/demo_9/rewards", np.ones(3)), "demo_9/rewards"),
    (_replaced("data/demo_9/terminated", b"yes"), "demo_9/terminated"),
    (_replaced("data/demo_9/terminated", "/nowhere"), "demo_9/terminated"),
]


@pytest.mark.parametrize(("change", "named"), HDF5, ids=range(len(HDF5)))
def test_a_damaged_hdf5_file_is_refused_by_field(change, named, tmp_path):
    h5py = pytest.importorskip("h5py")
    path = hdf5_file(tmp_path / "a.hdf5")
    with h5py.File(path, "a") as file:
        change(file, h5py)
    with pytest.raises(ConfigError, match=named) as caught:
        load([path], WANTED, {"policy": ("left", "right")})
    assert "a.hdf5" in str(caught.value)


def test_what_an_hdf5_file_holds_beside_what_is_asked_for_does_not_matter(tmp_path):
    h5py = pytest.importorskip("h5py")
    path = hdf5_file(tmp_path / "a.hdf5")
    with h5py.File(path, "a") as file:
        file["data/demo_9/obs/scalar"] = 1.0
        file["data/demo_9/obs/text"] = "hello"
        file["data/demo_9/obs/gone"] = h5py.SoftLink("/nowhere")
        file["data/demo_9/obs/image"] = np.zeros((2, 4, 4, 3))
        file["data/broken"] = h5py.SoftLink("/nowhere")
    require_both_episodes(load([path], WANTED, {"policy": ("left", "right")}))


def _column(name: str, values: list[object], kind: str = "float32") -> Callable[[Any, Any], Any]:
    def change(table: Any, pa: Any) -> Any:
        of = getattr(pa, kind)() if kind != "pairs" else pa.list_(pa.float32(), 2)
        return table.set_column(table.column_names.index(name), name, pa.array(values, of))

    return change


LEROBOT = [
    (_column("next.reward", [[1, 2]] * 5, "pairs"), r"next\.reward"),
    (_column("episode_index", [0, None, 1, 1, 1], "int64"), "episode_index"),
    (_column("episode_index", [[1, 2]] * 5, "pairs"), "episode_index"),
    (_column("action", [[1, 2], None, [1, 2], [1, 2], [1, 2]], "pairs"), "action"),
    (lambda table, pa: table.slice(0, 0), "no episode"),
]


@pytest.mark.parametrize(("change", "named"), LEROBOT, ids=range(len(LEROBOT)))
def test_a_damaged_lerobot_folder_is_refused_by_column(change, named, tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    folder = Path(lerobot_folder(tmp_path / "set", "v3.0"))
    file = folder / "data" / "chunk-000" / "file-000.parquet"
    pq.write_table(change(pq.read_table(file), pa), file)
    with pytest.raises(ConfigError, match=named):
        load([str(folder)], WANTED, {"policy": ("observation.state",)})


def damaged_archives(path: Path) -> list[Path]:
    """An archive whose content does not decompress, one with an unknown compression, and an encrypted one."""
    whole = path.read_bytes()
    out = []
    with zipfile.ZipFile(path) as archive:
        info = archive.infolist()[1]
    start = info.header_offset
    body = start + 30 + sum(int.from_bytes(whole[start + i : start + i + 2], "little") for i in (26, 28))
    central = whole.find(b"PK\x01\x02")
    for name, at, value in (
        ("zlib", body, b"\xff" * 8),
        ("method", central + 10, b"\x63\x00"),
        ("encrypted", central + 8, b"\x01\x00"),
    ):
        out.append(path.with_name(f"{name}.npz"))
        out[-1].write_bytes(whole[:at] + value + whole[at + len(value) :])
    return out


def test_damaged_archives_are_refused_by_name(tmp_path):
    np.savez_compressed(tmp_path / "whole.npz", **content())
    require_both_episodes(load([str(tmp_path / "whole.npz")], WANTED))
    for file in damaged_archives(tmp_path / "whole.npz"):
        with pytest.raises(ConfigError, match=file.name):
            load([str(file)], WANTED)
        with pytest.raises(ConfigError, match=file.name):
            segments.read(file)


def test_the_control_frequency_of_an_hdf5_file_must_be_the_tasks(tmp_path):
    path = hdf5_file(tmp_path / "a.hdf5")
    with pytest.raises(ConfigError, match=r"0\.05 s"):
        load([path], Wanted({"policy": 2}, 1, dt=0.02), {"policy": ("left", "right")})
