"""A local engine behind the part of vLLM's HTTP interface that our client speaks, on loopback.

It stands in for the wire only (paths, fields, server-sent events of vLLM 0.32), so that the client's own work is
tested everywhere; what a real server computes is tested with the marker `vllm`.
"""

from __future__ import annotations

import json
import threading
import time
from contextlib import aclosing, contextmanager
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

from infra.engines.base import GenerateRequest, Sampling
from infra.engines.local import LocalEngine


def wire_app(engine: LocalEngine) -> Starlette:
    async def models(_):
        return JSONResponse({"data": [{"id": "tiny", "max_model_len": engine.max_context}]})

    async def completions(request):
        body = await request.json()
        if not body.get("stream"):
            scores = await engine.score(body["prompt"])
            entries = [{str(i): {"logprob": x}} for i, x in zip(body["prompt"][1:], scores, strict=True)]
            return JSONResponse({"choices": [{"prompt_logprobs": [None, *entries]}]})
        return StreamingResponse(events(engine, body), media_type="text/event-stream")

    async def rpc(request):
        body = await request.json()
        assert body["method"] == "reload_weights"
        folder = Path(body["kwargs"]["weights_path"])
        assert folder.is_absolute()  # the server takes any other for the name of a model on the hub
        await engine.load_weights(folder, engine.policy_version + 1)
        return JSONResponse({"results": [None]})

    async def done(_):
        return JSONResponse({"success": True})

    posts = {"/v1/completions": completions, "/collective_rpc": rpc}
    posts |= dict.fromkeys(("/pause", "/resume", "/reset_prefix_cache"), done)
    routes = [Route(path, handler, methods=["POST"]) for path, handler in posts.items()]
    return Starlette(routes=[Route("/v1/models", models), *routes])


async def events(engine: LocalEngine, body):
    fields = ("temperature", "top_p", "top_k", "max_tokens", "stop_token_ids", "seed")
    sampling = Sampling(**{name: body[name] for name in fields})
    request = GenerateRequest(
        request_id="wire",
        session_id=f"wire{body['seed']}",
        rollout_id="wire",
        call_index=0,
        prompt_ids=body["prompt"],
        sampling=sampling,
    )
    async with aclosing(engine.stream(request)) as deltas:
        async for delta in deltas:
            choice = {
                "index": 0,
                "text": "",
                "token_ids": list(delta.ids),
                "logprobs": {"token_logprobs": list(delta.logprobs)},
                "finish_reason": delta.finish_reason,
            }
            yield f"data: {json.dumps({'choices': [choice]})}\n\n"
    yield "data: [DONE]\n\n"


@contextmanager
def served(app: Starlette):
    """The app on a free port of loopback; gives its URL."""
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join()
