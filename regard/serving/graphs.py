"""Graphs in the explorer: a page that draws one, and asks again as heads are switched off."""

import json
from collections.abc import Mapping
from threading import Lock
from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from regard.inspection.graphs import graph_page
from regard.inspection.taps import edit
from regard.serving.errors import RefusalError
from regard.serving.live import replica
from regard.serving.registry import Registry, Served
from regard.serving.service import Service
from regard.tasks.viewer import Viewed

TASK = "graph"
EXAMPLE = '{"nodes": 4, "edges": [[0, 1], [1, 2], [2, 0], [2, 3]]}'
CLOSED, OPEN = "default-src 'none'", "default-src 'none'; connect-src 'self'"  # the page asks this server alone


class GraphAsked(BaseModel, extra="forbid"):
    """What is to be drawn: a molecule as SMILES, or an object; and by how much heads count."""

    graph: str = Field(max_length=2**20)
    model: str | None = None
    edits: dict[str, dict[int, float]] = {}


def add(routes: APIRouter, service: Service) -> None:
    """The page under /explore/graph, and what it asks."""
    lock, beside = Lock(), dict[int, Any]()

    def drawn(served: Served, graph: str, edits: Mapping[str, Mapping[int, float]]) -> dict[str, Any]:
        predictor = served.predictor()
        with lock:  # an edit is of the model that it shares with nobody
            if id(predictor) not in beside:
                beside.clear()
                beside[id(predictor)] = predictor, predictor.on(replica(predictor.model))
            own = beside[id(predictor)][1]
            with edit(own.model, edits):
                asked = graph.strip()
                held = json.loads(asked) if asked.startswith("{") else asked
                return {**own.drawn(Viewed(held), alone=False), "graph": graph, "model": served.id}

    async def told(request: Request, asked: GraphAsked) -> dict[str, Any]:
        served = that_reads_graphs(service.registry, asked.model)
        try:
            work = service.looked(served, lambda: drawn(served, asked.graph, asked.edits))
            return await service.attended(request, work)
        except ValueError as error:
            raise RefusalError(400, str(error), param="graph") from None

    @routes.get("/graph")
    async def page(request: Request, graph: str = "", model: str | None = None) -> Response:
        served = that_reads_graphs(service.registry, model)
        known = "C" in served.predictor().tokenizer.rust.get_vocab()
        found = await told(request, GraphAsked(graph=graph or ("c1ccccc1O" if known else EXAMPLE), model=served.id))
        html = graph_page(found, found["graph"]).replace(CLOSED, OPEN, 1)
        policy = html.partition('Policy" content="')[2].partition('"')[0]
        return Response(html, media_type="text/html", headers={"Content-Security-Policy": policy})

    @routes.post("/api/graph")
    async def again(asked: GraphAsked, request: Request) -> dict[str, Any]:
        return await told(request, asked)


def that_reads_graphs(registry: Registry, id: str | None) -> Served:
    """The model of this id, if it reads graphs, or the first that does."""
    able = [served for served in registry if served.task.name == TASK]
    if id is None and able:
        return able[0]
    if (served := registry.get(id)).task.name != TASK:
        raise RefusalError(404, f"{served.id} is {served.task.a_model}: it reads no graphs", param="model")
    return served
