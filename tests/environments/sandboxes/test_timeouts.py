"""A command past its time: its whole tree ends, however detached; what ran before it does not."""

from __future__ import annotations

from environments.sandboxes.base import BoxLimits, Sandbox, SandboxProvider, SandboxSpec

DETACHED = """
sleep 61 &
setsid sleep 62 &
(setsid sh -c 'trap "" TERM INT HUP; sleep 63 & sleep 64 & wait' &)
python3 -c 'import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0: time.sleep(65)
' &
sleep 66
echo went on
"""


async def test_a_timeout_ends_background_children_and_detached_sessions(box: Sandbox) -> None:
    result = await box.run(DETACHED, timeout_s=1.5)
    assert (result.exit_code, result.timed_out, result.fault) == (None, True, None)
    assert "went on" not in result.output
    assert 1.5 <= result.duration_s < 6
    left = await box.run("ps -eo args | grep -E 'sleep|time' | grep -v grep; echo end")
    assert left.output.endswith("gone]\nend\n")


async def test_a_timeout_spares_a_service_that_an_earlier_command_started(box: Sandbox) -> None:
    await box.run("mkdir d; cd d; (while :; do sleep 0.05; done) & service=$!; echo $service > pid")
    assert (await box.run("sleep 50", timeout_s=0.3)).timed_out
    after = await box.run("pwd; kill -0 $(cat pid) && echo service lives")
    assert after.output.endswith("/srv/d\nservice lives\n")


async def test_a_loop_of_builtins_and_a_stopped_shell_time_out_too(box: Sandbox) -> None:
    assert (await box.run("while :; do :; done", timeout_s=0.3)).timed_out
    assert (await box.run("kill -STOP $$", timeout_s=0.3)).timed_out
    assert (await box.run("echo alive")).output.endswith("alive\n")


async def test_output_before_the_timeout_is_kept(box: Sandbox) -> None:
    result = await box.run("echo before; sleep 50", timeout_s=0.3)
    assert result.output == "before\n"


async def test_a_command_that_uses_up_its_processor_time_is_ended_over_all_its_processes(
    provider: SandboxProvider,
) -> None:
    box = await provider.start(SandboxSpec(label="cpu", limits=BoxLimits(cpu_s=0.5)))
    spin = "while :; do :; done"
    result = await box.run(f"({spin}) & ({spin}) & ({spin}) & wait", timeout_s=200)
    assert (result.exit_code, result.timed_out) == (None, True)
    assert result.duration_s < 150
    assert (await box.run("echo alive; pgrep -c bash")).output.endswith("alive\n1\n")
    await box.stop()
