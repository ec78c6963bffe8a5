"""`longbreath claims cispo`: bad input is refused, and the table says what the rows say."""

from __future__ import annotations

from rich.console import Console

from flows.cli.claims import _noisy_table, _rare_table, cispo
from flows.cli.options import Common
from training.experiments.cispo_claim import CispoClaim, NoisyRow, RareRow


def test_no_seeds_are_refused_before_anything_is_run(tmp_path, capsys):
    assert cispo(seeds=0, out=tmp_path / "out", common=Common(home=tmp_path)) == 2
    assert "--seeds is 0; want at least 1" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def printed(table) -> list[list[str]]:
    screen = Console(width=160)
    with screen.capture() as captured:
        screen.print(table)
    return [line.split() for line in captured.get().replace("│", " ").splitlines()]


def test_the_tables_say_what_was_measured_and_never_where_it_never_came():
    rare = RareRow(
        loss="ppo_clip",
        start_probability=1e-3,
        learning_rate=0.1,
        waited_median=2.0,
        batches_to_half_median=31.5,
        batches_to_half_max=None,
        gradient_share=(0.9, 0.125),
    )
    noisy = NoisyRow(loss="cispo", staleness=4, learning_rate=3, final_mean=0.5, final_min=0.02, lost_fraction=0.25)
    claim = CispoClaim(seeds=2, rare=(rare,), noisy=(noisy,), findings=())
    assert ["0.001", "0.1", "ppo_clip", "2", "31.5", "never", "0.125"] in printed(_rare_table(claim))
    assert ["4", "3", "cispo", "0.50", "0.02", "25%"] in printed(_noisy_table(claim))
