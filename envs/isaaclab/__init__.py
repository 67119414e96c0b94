"""Isaac Lab 3 (kit-less, Newton with MuJoCo Warp) behind the backend interface; `bridge` alone knows its names."""
