"""An Isaac Lab task of several agents: two cartpoles in a world, each an agent, which ends when its cart is 1 m away.

Each agent is paid 1 a step plus its action, `right` one more. The state is what both observe, side by side.
"""

from __future__ import annotations

import gymnasium
import isaaclab.sim as sim_utils
import torch
from isaaclab.actuators import ImplicitActuatorCfg
from isaaclab.assets import ArticulationCfg, AssetBaseCfg
from isaaclab.envs import DirectMARLEnv, DirectMARLEnvCfg
from isaaclab.scene import InteractiveSceneCfg
from isaaclab.sim import SimulationCfg
from isaaclab.utils import configclass
from isaaclab_newton.physics import MJWarpSolverCfg, NewtonCfg

AWAY = 1.0
"""Position of a cart at which its agent ends [m]."""


def cartpole(name: str, y: float) -> ArticulationCfg:
    return ArticulationCfg(
        prim_path="{ENV_REGEX_NS}/" + name,
        spawn=sim_utils.UsdFileCfg(usd_path="set by the test"),
        init_state=ArticulationCfg.InitialStateCfg(pos=(0.0, y, 2.0)),
        actuators={
            "cart": ImplicitActuatorCfg(joint_names_expr=["slider_to_cart"], stiffness=0.0, damping=0.0)
        },
    )


@configclass
class SceneCfg(InteractiveSceneCfg):
    ground = AssetBaseCfg(prim_path="/World/ground", spawn=sim_utils.UsdFileCfg(usd_path="set by the test"))
    left: ArticulationCfg = cartpole("Left", -1.0)
    right: ArticulationCfg = cartpole("Right", 1.0)


@configclass
class CartsCfg(DirectMARLEnvCfg):
    decimation = 2
    episode_length_s = 1.0
    possible_agents = ["left", "right"]  # noqa: RUF012
    action_spaces = {"left": 1, "right": 1}  # noqa: RUF012
    observation_spaces = {"left": 4, "right": 4}  # noqa: RUF012
    state_space = 8
    sim: SimulationCfg = SimulationCfg(
        dt=1 / 120, render_interval=2, physics=NewtonCfg(solver_cfg=MJWarpSolverCfg(njmax=20, nconmax=10))
    )
    scene: SceneCfg = SceneCfg(num_envs=16, env_spacing=10.0, replicate_physics=True)
    start = 0.25
    """Largest position of a cart after a reset [m]."""


class CartsEnv(DirectMARLEnv):
    cfg: CartsCfg

    def __init__(self, cfg, render_mode=None, **kwargs):
        super().__init__(cfg, render_mode, **kwargs)
        self.carts = {name: self.scene[name] for name in cfg.possible_agents}
        self.slider, _ = self.carts["left"].find_joints("slider_to_cart")

    def _pre_physics_step(self, actions):
        self.actions = actions

    def _apply_action(self):
        for name, cart in self.carts.items():
            cart.set_joint_effort_target_index(target=20.0 * self.actions[name], joint_ids=self.slider)

    def _get_observations(self):
        return {
            name: torch.cat([cart.data.joint_pos.torch, cart.data.joint_vel.torch], dim=1)
            for name, cart in self.carts.items()
        }

    def _get_states(self):
        return torch.cat(list(self.obs_dict.values()), dim=1)

    def _get_rewards(self):
        return {name: 1.0 + k + self.actions[name][:, 0] for k, name in enumerate(self.carts)}

    def _get_dones(self):
        late = self.episode_length_buf >= self.max_episode_length
        ended = {
            name: cart.data.joint_pos.torch[:, self.slider[0]] > AWAY for name, cart in self.carts.items()
        }
        return ended, dict.fromkeys(self.carts, late)

    def _reset_idx(self, env_ids):
        super()._reset_idx(env_ids)
        for cart in self.carts.values():
            place = cart.data.default_joint_pos.torch[env_ids].clone()
            place[:, self.slider[0]] = self.cfg.start * (2 * torch.rand(len(env_ids)) - 1)
            cart.write_joint_position_to_sim_index(position=place, env_ids=env_ids)
            cart.write_joint_velocity_to_sim_index(velocity=torch.zeros_like(place), env_ids=env_ids)


gymnasium.register(
    id="Test-Two-Carts-Direct",
    entry_point=f"{__name__}:CartsEnv",
    disable_env_checker=True,
    kwargs={"env_cfg_entry_point": f"{__name__}:CartsCfg"},
)
