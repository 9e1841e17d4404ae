"""What a demand knows about its graph."""

import numpy as np

from windrow.caching.vip import Demand


def test_a_graph_has_one_vertex_less_than_boundaries():
    def demand(indptr):
        return Demand(
            indptr=np.array(indptr),
            indices=np.empty(0, np.int32),
            own=(0, 0),
            seeds=np.empty(0, np.int64),
            steps=1,
            fanouts=(2,),
        )

    assert demand([0]).num_vertices == 0
    assert demand([0, 0, 0, 0]).num_vertices == 3
