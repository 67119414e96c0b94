"""Logs in MCAP files: real ones, written with the packages that record them."""

import importlib
import importlib.util
import json
import sys
from types import SimpleNamespace as Fields

import numpy as np
import pytest

from robolearn.cli import main
from robolearn.commands.exits import BAD_INPUT
from robolearn.errors import ConfigError, MissingError
from robolearn.simulation.sysid.log import Log, findings, read
from robolearn.simulation.sysid.mcap_log import topics_of
from tests.simulation.sysid_robots import recorded, two_links

if importlib.util.find_spec("mcap_ros2") is None:
    pytest.skip("mcap-ros2-support is not installed", allow_module_level=True)

HEADER = """
================================================================================
MSG: std_msgs/Header
builtin_interfaces/Time stamp
string frame_id
================================================================================
MSG: builtin_interfaces/Time
int32 sec
uint32 nanosec
"""
STATE = ("sensor_msgs/msg/JointState", "std_msgs/Header header\nstring[] name\nfloat64[] position\n"
         "float64[] velocity\nfloat64[] effort" + HEADER)  # fmt: skip
CONTROLLER = ("control_msgs/msg/JointTrajectoryControllerState", """std_msgs/Header header
string[] joint_names
trajectory_msgs/JointTrajectoryPoint reference
trajectory_msgs/JointTrajectoryPoint feedback
================================================================================
MSG: trajectory_msgs/JointTrajectoryPoint
float64[] positions
float64[] velocities
float64[] accelerations
float64[] effort
builtin_interfaces/Duration time_from_start
================================================================================
MSG: builtin_interfaces/Duration
int32 sec
uint32 nanosec""" + HEADER)  # fmt: skip
JOINTS = ["shoulder", "elbow"]


def header(time: float) -> Fields:
    nanoseconds = round(time * 1e9)
    return Fields(stamp=Fields(sec=nanoseconds // 10**9, nanosec=nanoseconds % 10**9), frame_id="")


def state(time: float, position=(), velocity=(), effort=(), name=JOINTS) -> Fields:
    lists = {"position": list(position), "velocity": list(velocity), "effort": list(effort)}
    return Fields(header=header(time), name=list(name), **lists)


def bag(path, messages, topics, compression="ZSTD", finish=True):
    """A file of (topic, recorded [s], message), with the definition of each topic."""
    from mcap.writer import CompressionType
    from mcap_ros2.writer import Writer

    with path.open("wb") as file:
        writer = Writer(file, chunk_size=4096, compression=CompressionType[compression])
        schemas = {kind: writer.register_msgdef(*kind) for kind in dict.fromkeys(topics.values())}
        for topic, time, message in messages:
            writer.write_message(topic, schemas[topics[topic]], message, round(time * 1e9))
        if finish:
            writer.finish()
    return path


def both_topics(path, start=1000.0, **settings):
    """3 s at 50 Hz; targets 4 ms before the measurements."""
    messages = []
    for k in range(150):
        time = start + 0.02 * k
        messages.append(("/joint_targets", time, state(time, (0.01 * k, 0.4))))
        measured = state(time + 0.004, (0.4, 0.01 * k), (0.0, 0.5), (1.0, 2.0), name=JOINTS[::-1])
        messages.append(("/joint_states", time + 0.004, measured))
    return bag(path, messages, {"/joint_targets": STATE, "/joint_states": STATE}, **settings)


@pytest.mark.parametrize("compression", ["NONE", "LZ4", "ZSTD"])
def test_two_topics_become_rows_of_targets_and_of_measurements(tmp_path, compression):
    found = read(both_topics(tmp_path / "bag.mcap", compression=compression))
    assert found.joints == ("shoulder", "elbow")
    assert len(found.time) == 300
    assert found.notes == ()
    np.testing.assert_allclose(found.time[:4], [0.0, 0.004, 0.02, 0.024], atol=1e-9)
    np.testing.assert_allclose(found.target[[0, 2, 298]], [[0.0, 0.4], [0.01, 0.4], [1.49, 0.4]])
    # Joints are told by their names: the measurements have them in another order.
    np.testing.assert_allclose(found.position[[1, 3, 299]], [[0.0, 0.4], [0.01, 0.4], [1.49, 0.4]])
    np.testing.assert_allclose(found.velocity[1], [0.5, 0.0])
    np.testing.assert_allclose(found.torque[1], [2.0, 1.0])
    assert np.isnan(found.position[::2]).all()
    assert np.isnan(found.target[1::2]).all()


@pytest.mark.parametrize(("wanted", "measured"), [("reference", "feedback"), ("desired", "actual")])
def test_a_controllers_state_has_targets_and_measurements_in_one_row(tmp_path, wanted, measured):
    kind = (CONTROLLER[0], CONTROLLER[1].replace("reference", wanted).replace("feedback", measured))
    point = lambda *positions: Fields(  # noqa: E731
        positions=list(positions), velocities=[], accelerations=[], effort=[],
        time_from_start=Fields(sec=0, nanosec=0))  # fmt: skip
    messages = [
        ("/arm/controller_state", 5.0, Fields(header=header(7.0 + 0.02 * k), joint_names=JOINTS,
         **{wanted: point(0.5, 0.02 * k), measured: point(0.4, 0.01 * k)}))
        for k in range(120)
    ]  # fmt: skip
    found = read(bag(tmp_path / "bag.mcap", messages, {"/arm/controller_state": kind}))
    np.testing.assert_allclose(found.time, 0.02 * np.arange(120), atol=1e-9)  # its header, not its recording
    np.testing.assert_allclose(found.target[100], [0.5, 2.0])
    np.testing.assert_allclose(found.position[100], [0.4, 1.0])
    assert np.isnan(found.torque).all()


def test_without_stamps_a_message_counts_at_the_time_of_its_recording(tmp_path):
    messages = []
    for k in range(120):
        messages.append(("/joint_targets", 3.0 + 0.02 * k, state(0.0, (0.1, 0.2))))
        messages.append(("/joint_states", 3.01 + 0.02 * k, state(9.0 + 0.02 * k, (0.1, 0.2))))
    topics = {"/joint_targets": STATE, "/joint_states": STATE}
    found = read(bag(tmp_path / "bag.mcap", messages, topics))
    np.testing.assert_allclose(found.time[:4], [0.0, 0.01, 0.02, 0.03], atol=1e-9)


def test_json_messages_are_read_as_well(tmp_path):
    from mcap.writer import Writer

    with (tmp_path / "bag.mcap").open("wb") as file:
        writer = Writer(file)
        writer.start()
        schema = writer.register_schema("sensor_msgs/msg/JointState", "jsonschema", b"{}")
        other = writer.register_schema("diagnostics", "jsonschema", b"{}")
        channels = {t: writer.register_channel(t, "json", schema) for t in ("/cmd", "/joint_states")}
        channels["/more"] = writer.register_channel("/more", "json", other)
        for k in range(120):
            for topic, channel in channels.items():
                content = {"name": JOINTS, "position": [0.1 * (topic == "/cmd"), 0.02 * k]}
                time = k * 20_000_000
                writer.add_message(channel, time, json.dumps(content).encode(), time)
        writer.finish()
    found = read(tmp_path / "bag.mcap")
    np.testing.assert_allclose(found.target[50], [0.1, 1.0])
    np.testing.assert_allclose(found.position[50], [0.0, 1.0])
    assert len(found.time) == 120  # equal stamps share a row


def test_topics_are_named_where_they_are_not_plain(tmp_path):
    messages = []
    for k in range(120):
        for topic, value in (("/a", 0.1), ("/b", 0.2), ("/c", 0.3)):
            messages.append((topic, 0.02 * k, state(1.0 + 0.02 * k, (value, 0.0))))
    path = bag(tmp_path / "bag.mcap", messages, dict.fromkeys(("/a", "/b", "/c"), STATE))
    with pytest.raises(ConfigError, match="/a, /b, /c"):
        read(path)
    found = read(path, topics_of("/c,/a"))
    assert (found.target[0, 0], found.position[0, 0]) == (0.3, 0.1)
    with pytest.raises(ConfigError, match="/d"):
        read(path, topics_of("/d,/a"))
    with pytest.raises(ConfigError, match="/b"):
        read(path, topics_of("/b"))


def test_a_topic_without_messages_is_no_topic(tmp_path):
    from mcap.writer import Writer

    with (tmp_path / "bag.mcap").open("wb") as file:
        writer = Writer(file)
        writer.start()
        schema = writer.register_schema("sensor_msgs/msg/JointState", "jsonschema", b"{}")
        channels = {
            t: writer.register_channel(t, "json", schema) for t in ("/cmd", "/empty", "/joint_states")
        }
        for k in range(120):
            for topic in ("/cmd", "/joint_states"):
                content = json.dumps({"name": JOINTS, "position": [0.1, 0.2]}).encode()
                writer.add_message(channels[topic], k * 20_000_000, content, k * 20_000_000)
        writer.finish()
    assert len(read(tmp_path / "bag.mcap").time) == 120
    with pytest.raises(ConfigError, match="/empty"):
        read(tmp_path / "bag.mcap", topics_of("/empty,/joint_states"))


@pytest.mark.parametrize("text", ["", "/a,", ",/b"])
def test_topics_without_a_name_are_refused(text):
    with pytest.raises(ConfigError, match="--topics"):
        topics_of(text)


def test_topics_the_wrong_way_round_are_refused(tmp_path):
    path = both_topics(tmp_path / "bag.mcap")
    with pytest.raises(ConfigError, match="/joint_states"):
        read(path, topics_of("/joint_states,/joint_targets"))


@pytest.mark.parametrize("compression", ["NONE", "LZ4", "ZSTD"])
def test_a_file_whose_recorder_was_killed_gives_what_it_has_wherever_it_was_cut(tmp_path, compression):
    whole = both_topics(tmp_path / "bag.mcap", compression=compression)
    content = whole.read_bytes()
    cut = tmp_path / "cut.mcap"
    rows = []
    # The first half has less than the 2 s that a log has at least.
    for end in range(int(0.9 * len(content)), len(content), max(1, len(content) // 700)):
        cut.write_bytes(content[:end])
        found = read(cut)
        rows.append(len(found.time))
        assert any("cut" in line for line in findings(found, {}, {})), end
    assert min(rows) >= 200
    assert max(rows) == 300
    cut.write_bytes(content[: int(0.95 * len(content))] + bytes(4000))
    assert len(read(cut).time) >= 200  # zeros after a loss of power


def test_damaged_files_are_refused_or_lose_rows_and_say_so(tmp_path):
    content = both_topics(tmp_path / "bag.mcap", compression="NONE").read_bytes()
    whole = read(tmp_path / "bag.mcap")
    random = np.random.default_rng(0)
    path = tmp_path / "damaged.mcap"
    refused = 0
    for _ in range(80):
        damaged = bytearray(content)
        for place in random.integers(0, len(content), 3):
            damaged[place] = random.integers(256)
        path.write_bytes(damaged)
        try:
            found = read(path)
        except ConfigError:
            refused += 1
            continue
        rows = len(found.time)
        np.testing.assert_array_equal(found.target, whole.target[:rows])
        np.testing.assert_array_equal(found.position, whole.position[:rows])
        assert rows == 300 or found.notes
    assert refused > 10
    path.write_bytes(b"no MCAP at all, but long enough to be one")
    with pytest.raises(ConfigError, match=r"damaged\.mcap"):
        read(path)


def test_topics_of_different_clocks_are_refused_with_their_times(tmp_path):
    kinds = {"/joint_targets": STATE, "/joint_states": STATE}
    for apart, offender in ((60.0, "60"), (1.7e9, "/joint_states")):
        messages = []
        for k in range(150):
            messages.append(("/joint_targets", 0.02 * k, state(1.0 + 0.02 * k, (0.1, 0.4))))
            messages.append(("/joint_states", 0.02 * k, state(1.0 + apart + 0.02 * k, (0.1, 0.4))))
        with pytest.raises(ConfigError, match=offender):
            read(bag(tmp_path / "bag.mcap", messages, kinds))


def test_two_controllers_are_read_together_and_a_filtered_state_is_no_target(tmp_path):
    point = lambda x: Fields(positions=[x], velocities=[], accelerations=[], effort=[],  # noqa: E731
                             time_from_start=Fields(sec=0, nanosec=0))  # fmt: skip
    messages = []
    for k in range(120):
        for topic, joint, x in (("/left", "shoulder", 0.1), ("/right", "elbow", 0.2)):
            parts = {"header": header(1 + 0.02 * k), "joint_names": [joint], "reference": point(x)}
            messages.append((topic, 0.02 * k, Fields(**parts, feedback=point(x - 0.05))))
    found = read(bag(tmp_path / "arms.mcap", messages, dict.fromkeys(("/left", "/right"), CONTROLLER)))
    np.testing.assert_allclose(found.target[0], [0.1, 0.2])
    np.testing.assert_allclose(found.position[0], [0.05, 0.15])
    messages = []
    for k in range(120):
        for topic in ("/joint_states", "/joint_states_filtered"):
            messages.append((topic, 0.02 * k, state(1 + 0.02 * k, (0.1, 0.2))))
    topics = dict.fromkeys(("/joint_states", "/joint_states_filtered"), STATE)
    with pytest.raises(ConfigError, match="/joint_states_filtered"):
        read(bag(tmp_path / "two.mcap", messages, topics))


def test_topics_that_are_not_taken_may_be_unreadable_and_joints_that_the_robot_lacks_are_left_out(tmp_path):
    kind = ("sensor_msgs/msg/JointState", STATE[1].replace("float64[] position", "float64 position"))
    messages = []
    for k in range(120):
        time = 1 + 0.02 * k
        odd = Fields(header=header(time), name=["x"], position=1.0, velocity=[], effort=[])
        messages.append(("/odd", time, odd))
        messages.append(("/cmd", time, state(time, (0.1, 0.2))))
        messages.append(("/joint_states", time, state(time, (0.1, 0.2, 0.3), name=[*JOINTS, "gripper"])))
    path = bag(tmp_path / "bag.mcap", messages, {"/odd": kind, "/cmd": STATE, "/joint_states": STATE})
    found = read(path, topics_of("/cmd,/joint_states")).known(JOINTS)
    assert found.joints == ("shoulder", "elbow")
    assert any("gripper" in note for note in found.notes)
    with pytest.raises(ConfigError, match="/odd"):
        read(path, topics_of("/cmd,/odd"))


def test_targets_and_measurements_in_rows_of_their_own_have_clocks_of_their_own(tmp_path):
    found = read(both_topics(tmp_path / "bag.mcap"))
    assert found.clock().period == pytest.approx(0.02)
    assert findings(found, {}, {}) == []
    random = np.random.default_rng(0)
    jitter = random.normal(0.0, 0.001, 300)
    ends = {"target": found.target, "position": found.position}
    noisy = Log("noisy", found.joints, found.time + jitter, *ends.values(), found.velocity, found.torque)
    regular = noisy.clock().regular
    assert regular is not None
    np.testing.assert_allclose(np.diff(regular)[:4], [0.004, 0.016, 0.004, 0.016], atol=5e-4)


def test_a_message_with_fewer_numbers_than_joints_is_refused(tmp_path):
    messages = [("/joint_states", 0.02 * k, state(1.0 + 0.02 * k, (0.1,))) for k in range(120)]
    with pytest.raises(ConfigError, match="/joint_states"):
        read(bag(tmp_path / "bag.mcap", messages, {"/joint_states": STATE}))


def test_without_the_package_it_says_what_to_install(tmp_path, monkeypatch):
    path = both_topics(tmp_path / "bag.mcap")
    monkeypatch.setitem(sys.modules, "mcap_ros2.decoder", None)
    with pytest.raises(MissingError, match=r"robolearn\[sysid\]"):
        read(path)


@pytest.mark.slow
def test_a_bag_of_two_topics_tells_what_a_csv_of_the_same_tells(tmp_path, capsys):
    robot = two_links(tmp_path)
    log = recorded(robot)
    log.write(tmp_path / "log.csv")
    messages = []
    for k, time in enumerate(log.time):
        if np.isfinite(log.target[k]).all():
            messages.append(("/joint_targets", time, state(1.0 + time, log.target[k], name=log.joints)))
        if np.isfinite(log.position[k]).all():
            messages.append(("/joint_states", time, state(1.0 + time, log.position[k], name=log.joints)))
    bag(tmp_path / "bag.mcap", messages, {"/joint_targets": STATE, "/joint_states": STATE})
    values = []
    for name in ("log.csv", "bag.mcap"):
        out = tmp_path / f"{name}.out"
        words = [
            "--robot",
            tmp_path / "links.xml",
            "--log",
            tmp_path / name,
            "--output",
            out,
            "--fit",
            "kp,delay",
        ]
        main(["sysid", *map(str, words)])
        result = json.loads((out / "result.json").read_text())
        values.append([one["value"][0] for one in result["parameters"].values()])
    np.testing.assert_allclose(values[1], values[0], rtol=1e-3)
    code = main(
        [
            "sysid",
            "--robot",
            str(tmp_path / "links.xml"),
            "--log",
            str(tmp_path / "log.csv"),
            "--topics",
            "/a",
        ]
    )
    assert code == BAD_INPUT
    assert "--topics" in capsys.readouterr().err
