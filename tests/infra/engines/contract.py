"""What every engine must do. A test class inherits the parts that its engine promises and gives the fixtures
`engine` (serving `reference`'s weights, max_context 512) and `other_folder` (weights for the swap).
"""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress

import numpy as np
import pytest
import torch
from scipy import stats
from transformers import AutoModelForCausalLM

from infra.engines.base import Completion, EngineError, GenerateRequest, Sampling

VOCAB = 320


def random_ids(seed: int, count: int) -> list[int]:
    return [random.Random(seed * 1000 + i).randrange(VOCAB) for i in range(count)]


def plain_logprobs(reference, ids, temperature: float = 1.0) -> torch.Tensor:
    """`[L-1, V]`: row t is the distribution of ids[t+1], by one forward pass over the whole sequence."""
    logits = reference(torch.tensor([list(ids)])).logits[0, :-1].float()
    return torch.log_softmax(logits / temperature, dim=-1)


def chosen(logprobs: torch.Tensor, ids) -> torch.Tensor:
    return logprobs[-len(ids) :].gather(-1, torch.tensor(list(ids))[:, None]).squeeze(-1)


async def gather(engine, requests) -> list[Completion]:
    return await asyncio.gather(*(engine.generate(r) for r in requests))


async def collect(stream) -> list:
    return [delta async for delta in stream]


class EngineContract:
    """For every engine, whatever it answers."""

    logprob_tolerance = 1e-4

    def request(self, name: str, prompt, *, call_index: int = 0, session: str | None = None, **sampling):
        return GenerateRequest(
            request_id=f"{name}/{call_index}",
            session_id=session or name,
            rollout_id=name,
            call_index=call_index,
            prompt_ids=prompt,
            sampling=Sampling(**{"max_tokens": 20, **sampling}),
        )

    async def test_logprobs_are_those_of_a_plain_forward_pass(self, engine, reference):
        prompts = [random_ids(i, length) for i, length in enumerate((1, 7, 64, 130, 300))]
        for temperature in (0.5, 1.0, 1.7):
            requests = [self.request(f"plain{i}", p, temperature=temperature) for i, p in enumerate(prompts)]
            for prompt, completion in zip(prompts, await gather(engine, requests), strict=True):
                expected = chosen(plain_logprobs(reference, [*prompt, *completion.ids], temperature), completion.ids)
                difference = (torch.tensor(completion.logprobs) - expected).abs().max()
                assert difference <= self.logprob_tolerance

    async def test_greedy_logprobs_are_of_the_temperature_1_distribution(self, engine, reference):
        prompt = random_ids(3, 40)
        completion = await engine.generate(self.request("greedy", prompt, temperature=0.0))
        expected = chosen(plain_logprobs(reference, [*prompt, *completion.ids]), completion.ids)
        assert (torch.tensor(completion.logprobs) - expected).abs().max() <= self.logprob_tolerance

    async def test_score_is_a_plain_forward_pass(self, engine, reference):
        ids = random_ids(4, 200)
        scores = await engine.score(ids)
        expected = chosen(plain_logprobs(reference, ids), ids[1:])
        assert len(scores) == 199
        assert (torch.tensor(scores) - expected).abs().max() <= self.logprob_tolerance

    async def test_a_stream_carries_the_completion_and_ends_with_its_reason(self, engine):
        prompt = random_ids(5, 30)
        whole = await engine.generate(self.request("stream", prompt, seed=5))
        deltas = await collect(engine.stream(self.request("stream", prompt, seed=5)))
        assert tuple(i for d in deltas for i in d.ids) == whole.ids
        assert tuple(x for d in deltas for x in d.logprobs) == pytest.approx(whole.logprobs, abs=1e-5)
        assert [d.finish_reason for d in deltas[:-1]] == [None] * (len(deltas) - 1)
        assert deltas[-1].finish_reason == whole.finish_reason

    async def test_max_tokens_ends_a_completion_with_length(self, engine):
        completion = await engine.generate(self.request("short", random_ids(6, 10), max_tokens=3))
        assert len(completion.ids) == len(completion.logprobs) == 3
        assert completion.finish_reason == "length"

    async def test_the_context_ends_a_completion_with_length(self, engine):
        prompt = random_ids(7, engine.max_context - 2)
        completion = await engine.generate(self.request("full", prompt, max_tokens=50))
        assert len(completion.ids) == 2
        assert completion.finish_reason == "length"

    async def test_a_prompt_that_leaves_no_room_is_refused(self, engine):
        prompt = random_ids(8, engine.max_context)
        with pytest.raises(ValueError, match=f"prompt has {engine.max_context} tokens; want 1 to"):
            await engine.generate(self.request("over", prompt))

    async def test_an_empty_prompt_is_refused(self, engine):
        with pytest.raises(ValueError, match="prompt has 0 tokens"):
            await engine.generate(self.request("empty", []))

    async def test_every_delta_carries_the_policy_version_and_new_weights_a_greater_one(self, engine, other_folder):
        version = engine.policy_version
        before = await engine.generate(self.request("version", random_ids(9, 20), temperature=0.0))
        await engine.load_weights(other_folder, version + 5)
        after = await engine.generate(self.request("version", random_ids(9, 20), temperature=0.0))
        assert (before.policy_version, after.policy_version) == (version, version + 5)
        assert engine.policy_version == version + 5
        assert before.logprobs != pytest.approx(after.logprobs, abs=1e-3)

    async def test_after_a_swap_every_logprob_is_of_the_new_weights(self, engine, other_folder):
        other = AutoModelForCausalLM.from_pretrained(other_folder, dtype=torch.float32).eval()
        await engine.load_weights(other_folder, engine.policy_version + 1)
        prompt = random_ids(14, 60)
        completion = await engine.generate(self.request("swapped", prompt))
        ids = [*prompt, *completion.ids]
        with torch.no_grad():
            expected = chosen(plain_logprobs(other, ids), ids[1:])
        for got, want in ((await engine.score(ids), expected), (completion.logprobs, expected[len(prompt) - 1 :])):
            assert (torch.tensor(got) - want).abs().max() <= self.logprob_tolerance

    async def test_a_version_that_does_not_grow_is_refused(self, engine, other_folder):
        with pytest.raises(ValueError, match="is not above the present one"):
            await engine.load_weights(other_folder, engine.policy_version)

    async def test_weights_are_swapped_after_running_calls_and_before_new_ones(self, engine, other_folder):
        version = engine.policy_version
        running = [
            asyncio.create_task(engine.generate(self.request(f"old{i}", random_ids(i, 100), max_tokens=60)))
            for i in range(4)
        ]
        await asyncio.sleep(0.01)
        swap = asyncio.create_task(engine.load_weights(other_folder, version + 1))
        await asyncio.sleep(0)
        new = asyncio.create_task(engine.generate(self.request("new", random_ids(9, 10))))
        versions = [completion.policy_version for completion in await asyncio.gather(*running)]
        await swap
        assert versions == [version] * 4
        assert (await new).policy_version == version + 1

    async def test_closing_a_stream_leaves_the_engine_free_for_others(self, engine):
        for i in range(3):
            stream = engine.stream(self.request(f"closed{i}", random_ids(10, 50), max_tokens=400))
            await anext(stream)
            await stream.aclose()
        completion = await engine.generate(self.request("after", random_ids(11, 10), max_tokens=4))
        assert len(completion.ids) == 4

    async def test_cancelling_a_generation_leaves_the_engine_free_for_others(self, engine):
        for delay in (0, 0.001, 0.003, 0.01):
            task = asyncio.create_task(engine.generate(self.request(f"g{delay}", random_ids(12, 50), max_tokens=400)))
            await asyncio.sleep(delay)
            task.cancel()
            # Begun and no more, it cannot have ended; later, a quick engine on a slow loop may.
            with pytest.raises(asyncio.CancelledError) if delay == 0 else suppress(asyncio.CancelledError):
                await task
        completion = await engine.generate(self.request("after", random_ids(13, 10), max_tokens=4))
        assert len(completion.ids) == 4

    async def test_closing_an_unknown_session_is_ignored(self, engine):
        await engine.close_session("nobody")

    async def test_a_closed_engine_refuses_calls_and_may_be_closed_again(self, engine):
        await engine.aclose()
        await engine.aclose()
        with pytest.raises(EngineError, match="closed"):
            await engine.generate(self.request("late", [1, 2, 3]))


class SamplingContract(EngineContract):
    """For engines that draw their own tokens."""

    async def test_greedy_ids_are_those_of_transformers_and_the_same_twice(self, engine, reference):
        for seed in range(3):
            prompt = random_ids(20 + seed, 50)
            first, second = [
                await engine.generate(self.request(f"g{seed}{k}", prompt, temperature=0.0, max_tokens=30))
                for k in range(2)
            ]
            ids = torch.tensor([prompt])
            output = reference.generate(
                ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=30, eos_token_id=None
            )
            assert list(first.ids) == output[0, 50:].tolist()
            assert first == second

    async def test_a_stop_token_ends_a_completion_and_is_part_of_it(self, engine):
        prompt = random_ids(23, 30)
        free = await engine.generate(self.request("stop", prompt, max_tokens=20))
        stop = free.ids[11]
        stopped = await engine.generate(self.request("stop", prompt, max_tokens=20, stop_token_ids=(stop, 5)))
        end = next(i for i, token in enumerate(free.ids) if token in (stop, 5))
        assert stopped.ids == free.ids[: end + 1]
        assert stopped.finish_reason == "stop"

    async def test_tokens_depend_on_seed_rollout_and_call_and_on_nothing_else(self, engine):
        prompt = random_ids(24, 20)

        async def ids(name, **kwargs):
            return (await engine.generate(self.request(name, prompt, **kwargs))).ids

        same = await ids("a")
        assert await ids("a", session="another") == same
        assert await ids("b") != same
        assert await ids("a", seed=1) != same
        assert await ids("a", call_index=1) != same

    async def test_drawn_tokens_follow_the_distribution(self, engine, reference):
        prompt = random_ids(25, 12)
        requests = [self.request(f"draw{i}", prompt, temperature=0.8, max_tokens=1) for i in range(3000)]
        drawn = [completion.ids[0] for completion in await gather(engine, requests)]
        expected = plain_logprobs(reference, [*prompt, 0], 0.8)[-1].exp().double().numpy() * 3000
        assert chi_square_p(np.bincount(drawn, minlength=VOCAB), expected) > 0.01

    async def test_top_k_and_top_p_draw_from_the_renormalised_head_of_the_distribution(self, engine, reference):
        prompt = random_ids(26, 12)
        full = plain_logprobs(reference, [*prompt, 0])[-1].exp().double()
        order = full.argsort(descending=True)
        head = full[order[:20]] / full[order[:20]].sum()
        kept = order[: int((head.cumsum(0) - head < 0.6).sum())]
        requests = [self.request(f"top{i}", prompt, top_k=20, top_p=0.6, max_tokens=1) for i in range(1000)]
        completions = await gather(engine, requests)
        assert {c.ids[0] for c in completions} == set(kept.tolist())
        mass = full[kept].sum()
        for completion in completions:
            expected = float((full[completion.ids[0]] / mass).log())
            assert completion.logprobs[0] == pytest.approx(expected, abs=self.logprob_tolerance)

    async def test_a_conversation_in_one_session_is_that_of_a_fresh_session_each_turn(self, engine):
        kept, fresh = random_ids(27, 40), random_ids(27, 40)
        for turn in range(4):
            a = await engine.generate(self.request("talk", kept, call_index=turn))
            b = await engine.generate(self.request("talk", fresh, call_index=turn, session=f"fresh{turn}"))
            assert a.ids == b.ids
            assert a.logprobs == pytest.approx(b.logprobs, abs=1e-5)
            kept += [*a.ids, *random_ids(28 + turn, 15)]
            fresh += [*b.ids, *random_ids(28 + turn, 15)]

    async def test_a_session_that_rewrites_its_history_is_answered_right(self, engine, reference):
        prompt = random_ids(33, 60)
        await engine.generate(self.request("rewrite", prompt, call_index=0))
        rewritten = [*prompt[:25], *random_ids(34, 20)]
        completion = await engine.generate(self.request("rewrite", rewritten, call_index=1))
        expected = chosen(plain_logprobs(reference, [*rewritten, *completion.ids]), completion.ids)
        assert (torch.tensor(completion.logprobs) - expected).abs().max() <= self.logprob_tolerance

    async def test_many_calls_at_once_are_all_answered(self, engine):
        requests = [self.request(f"many{i}", random_ids(i, 1 + 7 * i % 90), max_tokens=1 + i % 13) for i in range(100)]
        completions = await gather(engine, requests)
        assert [len(c.ids) for c in completions] == [1 + i % 13 for i in range(100)]


class BitwiseContract(SamplingContract):
    """For engines in which a row does not depend on its neighbours, to the last bit."""

    async def test_a_call_alone_and_among_31_others_gives_the_same_bits(self, engine, make_engine):
        subject = self.request("subject", random_ids(40, 83), max_tokens=40)
        alone = await make_engine().generate(subject)
        rng = random.Random(41)
        others = [
            self.request(
                f"other{i}",
                random_ids(50 + i, rng.randrange(1, 300)),
                max_tokens=rng.randrange(1, 60),
                temperature=rng.choice([0.0, 0.7, 1.0, 1.3]),
                top_p=rng.choice([0.8, 1.0]),
                seed=i,
            )
            for i in range(31)
        ]
        for position in (0, 13, 31):
            crowd = [*others[:position], subject, *others[position:]]
            assert (await gather(make_engine(), crowd))[position] == alone

    async def test_a_resumed_conversation_gives_the_bits_of_the_undisturbed_one(self, engine, make_engine):
        prompt, undisturbed = random_ids(42, 70), []
        for turn in range(4):
            completion = await engine.generate(self.request("resume", prompt, call_index=turn))
            undisturbed.append((list(prompt), completion))
            prompt += [*completion.ids, *random_ids(43 + turn, 21)]
        for turn in (3, 1):
            ids, completion = undisturbed[turn]
            assert await make_engine().generate(self.request("resume", ids, call_index=turn)) == completion

    async def test_calls_that_share_a_prefix_give_the_bits_they_give_alone(self, make_engine):
        shared = random_ids(44, 150)
        requests = [self.request(f"share{i}", [*shared, *random_ids(45 + i, 9)]) for i in range(12)]
        together = await gather(make_engine(), requests)
        assert together[7] == await make_engine().generate(requests[7])
        assert together[0] == await make_engine().generate(requests[0])


def chi_square_p(observed: np.ndarray, expected: np.ndarray) -> float:
    """p-value of Pearson's test, with tokens expected fewer than 5 times pooled."""
    expected = expected * (observed.sum() / expected.sum())  # float32 probabilities sum to 1 within 1e-7 only
    rare = expected < 5
    pooled = [np.append(counts[~rare], counts[rare].sum()) for counts in (observed, expected)]
    return float(stats.chisquare(*pooled).pvalue)
