"""USD files for Isaac Lab's tasks, in place of those that it would download."""

from __future__ import annotations

from pathlib import Path
from typing import Any

MJCF = Path(__file__).parents[2] / "envs" / "robots" / "cartpole" / "cartpole.xml"

FLOOR = """#usda 1.0
(
    defaultPrim = "Ground"
    metersPerUnit = 1
    upAxis = "Z"
)
def Xform "Ground"
{
    def Plane "Plane" ( prepend apiSchemas = ["PhysicsCollisionAPI"] )
    {
        uniform token axis = "Z"
    }
}
"""

DOUBLE_PENDULUM = """
<mujoco model="double_pendulum">
  <worldbody>
    <body name="rail">
      <geom type="box" size="4 0.02 0.02" mass="1"/>
      <body name="cart">
        <joint name="slider_to_cart" type="slide" axis="1 0 0" range="-4 4"/>
        <geom type="box" size="0.2 0.1 0.1" mass="1" contype="0" conaffinity="0"/>
        <body name="pole" pos="0 0 0.1">
          <joint name="cart_to_pole" type="hinge" axis="0 1 0"/>
          <geom type="capsule" fromto="0 0 0 0 0 0.5" size="0.02" mass="0.2" contype="0" conaffinity="0"/>
          <body name="pendulum" pos="0 0 0.5">
            <joint name="pole_to_pendulum" type="hinge" axis="0 1 0"/>
            <geom type="capsule" fromto="0 0 0 0 0 0.5" size="0.02" mass="0.2" contype="0" conaffinity="0"/>
          </body>
        </body>
      </body>
    </body>
  </worldbody>
</mujoco>
"""
"""A cart of 1 kg on a rail of 8 m with two links of 0.5 m and 0.2 kg, with the names that Isaac Lab's task expects."""


def cartpole() -> Any:
    """RoboLearn's cartpole, an MjSpec, with the joint names and limits that Isaac Lab's tasks expect."""
    import mujoco

    spec = mujoco.MjSpec.from_file(str(MJCF))
    rail, pole = spec.joint("slider"), spec.joint("hinge")
    rail.range = [-4.0, 4.0]
    rail.name, pole.name = "slider_to_cart", "cart_to_pole"
    return spec


def double_pendulum() -> Any:
    """A cart with two links, an MjSpec."""
    import mujoco

    return mujoco.MjSpec.from_string(DOUBLE_PENDULUM)


def robot(spec: Any, folder: Path) -> str:
    """The USD file of a robot, an MjSpec."""
    import mujoco_usd_converter

    model = spec.compile()
    for body in spec.bodies[1:]:  # the converter computes mass from colliding geoms only
        i = model.body(body.name).id
        body.mass, body.inertia = model.body_mass[i], model.body_inertia[i]
        body.ipos, body.iquat, body.explicitinertial = model.body_ipos[i], model.body_iquat[i], True
    for geom in list(spec.worldbody.geoms):
        spec.delete(geom)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "robot.xml").write_text(spec.to_xml())
    converter = mujoco_usd_converter.Converter(layer_structure=False, scene=False)
    return str(converter.convert(str(folder / "robot.xml"), str(folder / "usd")).path)


def floor(folder: Path) -> str:
    """The USD file of a floor."""
    (folder / "floor.usda").write_text(FLOOR)
    return str(folder / "floor.usda")
