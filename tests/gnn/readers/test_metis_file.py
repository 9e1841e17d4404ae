"""METIS graph files."""

import pytest

from benchmarks.harness.power_law import power_law_graph
from windrow.comm.errors import DataError
from windrow.gnn.readers.metis_file import read_metis
from windrow.gnn.readers.options import GraphOptions

TRIANGLE_AND_TAIL = [[1, 2], [0, 2], [0, 1, 3], [2], []]


def options(folder, text):
    (folder / "test.graph").write_text(text, encoding="ascii")
    return GraphOptions(path=str(folder / "test.graph"))


@pytest.mark.parametrize(
    "text",
    [
        "5 4\n2 3\n1 3\n1 2 4\n3\n\n",
        "% comment\n5 4 0\n% another\n2 3\n1 3\n1 2 4\n3\n\n\n\n",
        "5 4 1\n2 9 3 9\n1 9 3 8\n1 9 2 8 4 1\n3 1\n\n",
        "5 4 10\n7 2 3\n7 1 3\n7 1 2 4\n7 3\n7\n",
        "5 4 011 2\n7 7 2 9 3 9\n7 7 1 9 3 8\n7 7 1 9 2 8 4 1\n7 7 3 1\n7 7\n",
        "5 4 111 1\n5 7 2 9 3 9\n5 7 1 9 3 8\n5 7 1 9 2 8 4 1\n5 7 3 1\n5 7\n",
    ],
)
def test_weights_and_comments_are_passed_over(tmp_path, text):
    graph = read_metis(options(tmp_path, text))
    lists = [graph.indices[graph.indptr[v] : graph.indptr[v + 1]].tolist() for v in range(5)]
    assert lists == TRIANGLE_AND_TAIL
    assert graph.labels is graph.features is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: the header is ''; it must be 'vertices edges [format [weights]]'."),
        ("% c\nthree 2\n", "line 2: the header is 'three 2'"),
        ("2 1 7\n2\n1\n", "line 1: the header's format is '7'; it must be up to three digits 0 or 1."),
        ("2 1\n2\nx\n", "line 3: 'x' is no list of whole numbers; correct it."),
        ("2 1\n2\n1\n1\n", "line 4: there are more than 2 vertices; correct the header."),
        ("3 1\n2\n1\n", "3 vertices and 1 edges, which makes 2 neighbours, but there are 2 lines of 2 neighbours"),
        ("2 2\n2\n1\n", "2 edges, which makes 4 neighbours, but there are 2 lines of 2 neighbours; the file is"),
        ("2 1\n% c\n3\n1\n", "line 3 (ids there count from 1): source 2 is not a vertex; the graph has 2"),
        ("2 1\n0\n1\n", "line 2 (ids there count from 1): source -1 is not a vertex"),
        ("2 1 1\n2\n1 1\n", "line 2: 1 numbers do not make 0 vertex weights and 2 numbers per neighbour"),
        ("2 1 10\n\n1\n", "line 2: 0 numbers do not make 1 vertex weights and 1 numbers per neighbour"),
        ("3 1\n2 3\n\n\n", "line 2: vertex 1 lists 2, but line 3 of vertex 2 does not list 1 as often; list each"),
        ("3 2\n2 2\n1 3\n2\n", "2 edges, which makes 4 neighbours, but there are 3 lines of 5"),
        ("3 3\n2 2 3\n1\n1 1\n", "line 2: vertex 1 lists 2, but line 3 of vertex 2 does not list 1 as often"),
        ("2 1\n1 2\n\n", "line 2: vertex 1 lists itself; remove the self-loop."),
    ],
)
def test_broken_files_are_refused(tmp_path, text, message):
    with pytest.raises(DataError) as caught:
        read_metis(options(tmp_path, text))
    assert message in str(caught.value)
    assert "test.graph" in str(caught.value)


def test_a_larger_graph(tmp_path):
    graph = power_law_graph(300, 2_000, seed=1)
    lists = [graph.indices[graph.indptr[v] : graph.indptr[v + 1]] + 1 for v in range(300)]
    lines = [f"300 {graph.num_edges // 2}", *(" ".join(map(str, neighbours.tolist())) for neighbours in lists)]
    assert read_metis(options(tmp_path, "\n".join(lines) + "\n")).fingerprint() == graph.fingerprint()
