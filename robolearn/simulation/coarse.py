"""Meshes with fewer triangles, for drawing on a CPU.

A robot's CAD files have some 200 000 triangles, most of them smaller than a pixel, and a CPU spends its time on their
corners, not on pixels.
"""

from __future__ import annotations

from typing import Any

import numpy as np


def coarsen(model: Any, cell: float) -> None:
    """Merge the vertices of each mesh of an MjModel that lie in the same cube with sides of `cell` [m], and drop the
    triangles that this makes flat or equal (vertex clustering: Rossignac and Borrel, 1993). Only what is drawn changes,
    when an MjrContext is made: hulls, inertia and contacts are not computed from these triangles."""
    for mesh in range(model.nmesh):
        first, count = int(model.mesh_faceadr[mesh]), int(model.mesh_facenum[mesh])
        start = int(model.mesh_vertadr[mesh])
        vertices = model.mesh_vert[start : start + int(model.mesh_vertnum[mesh])]
        rows = slice(first, first + count)
        cells = np.floor(vertices / cell).astype(np.int64)
        _, kept, of = np.unique(cells, axis=0, return_index=True, return_inverse=True)
        faces = kept[of.reshape(-1)][model.mesh_face[rows]]
        a, b, c = faces.T
        solid = np.flatnonzero((a != b) & (b != c) & (c != a))
        # The first of equal triangles, in the order of the file.
        _, unique = np.unique(np.sort(faces[solid], axis=1), axis=0, return_index=True)
        left = solid[np.sort(unique)]
        last = first + len(left)
        model.mesh_face[first:last] = faces[left]
        # Corners keep their normals, so that round surfaces look round.
        for name in ("mesh_facenormal", "mesh_facetexcoord"):
            values = getattr(model, name)
            values[first:last] = values[rows][left]
        model.mesh_facenum[mesh] = len(left)
