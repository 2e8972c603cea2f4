"""Commands on a language file, with costs that the file or a profile states: what is said, kept and refused."""

import json
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from loadslice.app.commands import plan, portrait, profile, simulate
from loadslice.sim.language_world_test import profile as known_profile
from loadslice.spec.errors import InputError
from loadslice.spec.files import encode_json, write_bytes
from loadslice.spec.language import load_language
from loadslice.spec.language_plan import LanguagePlan
from loadslice.spec.language_profile import load_profile
from loadslice.spec.language_report import LanguageReport

FILE = """
version: 1
language: tiny
model: none.gguf
context: 512
engines:
  prefill:
    {backend: none, roles: [prefill], seats: 2, step_tokens: 512, cost: {step_ms: 10, token_us: 1000, row_us: 1000}}
  decode: {backend: none, chunk: 64, cost: {step_ms: 10, token_us: 1000, row_us: 1000}}
links:
  - {from: prefill, to: decode}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "chat.yaml").write_text(FILE)
    (tmp_path / "costless.yaml").write_text(FILE.replace(", cost: {step_ms: 10, token_us: 1000, row_us: 1000}", ""))
    rows = [
        {"arrival_s": at / 4, "tokens_in": 40 + 90 * (at % 3), "tokens_out": 12, "blocks": [at % 2, 10 + at % 5]}
        for at in range(80)
    ]
    (tmp_path / "trace.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "plain.jsonl").write_text('{"arrival_s": 0}\n{"arrival_s": 1}\n')
    write_bytes(tmp_path / "profile.json", encode_json(known_profile(context=512)))
    return tmp_path


def simulated(folder: Path, *more: str) -> LanguageReport:
    asked = [str(folder / "trace.jsonl"), "--pipeline", str(folder / "chat.yaml"), *more]
    done = CliRunner().invoke(simulate.command, [*asked, "--json"], catch_exceptions=False)
    assert done.exit_code == 0
    return msgspec.json.decode(done.stdout, type=LanguageReport)


def refused(command: object, *asked: str) -> str:
    with pytest.raises(InputError) as error:
        CliRunner().invoke(command, [str(one) for one in asked], catch_exceptions=False)  # type: ignore[arg-type]
    assert "\n" not in str(error.value)
    return str(error.value)


def test_routers_stand_side_by_side_with_intervals(folder: Path) -> None:
    report = simulated(folder, "--policy", "all", "--replicas", "3", "--out", str(folder / "out"))
    assert [one.policy for one in report.routers] == [
        "always-local",
        "always-remote",
        "length",
        "length-or-load",
        "cost",
    ]
    by_policy = {one.policy: one.simulation for one in report.routers}
    assert by_policy["always-local"].handovers == 0
    assert by_policy["always-remote"].handovers == 80
    assert all(one.interval_95 is not None for one in report.routers)
    assert report.basis == "costs as the language file states them"
    kept = msgspec.json.decode((folder / "out" / "simulation.json").read_bytes(), type=LanguageReport)
    assert kept.routers == report.routers
    text = CliRunner().invoke(
        simulate.command, [str(folder / "trace.jsonl"), "--pipeline", str(folder / "chat.yaml")], catch_exceptions=False
    )
    assert "first token p50" in text.stdout


def test_a_profile_gives_the_costs_and_says_so(folder: Path) -> None:
    report = simulated(folder, "--profile", str(folder / "profile.json"))
    assert report.basis == "measured costs"


def test_tokens_that_do_not_fit_are_cut_and_counted(folder: Path) -> None:
    report = simulated(folder, "--scale-tokens", "4")
    assert report.prompts_cut > 0
    assert any("were cut" in warning for warning in report.warnings)
    assert report.routers[0].simulation.outcomes["completed"] == 80


def test_prefix_caches_are_simulated_on_a_trace_with_blocks(folder: Path) -> None:
    shares = [
        simulated(folder, "--prefix-tokens", tokens).routers[0].simulation.prefix_hit_share
        for tokens in ("0", "100000")
    ]
    assert shares[0] == 0
    assert shares[1] is not None
    assert shares[1] > 0.3


def test_an_engine_that_goes_down_moves_its_work(folder: Path) -> None:
    (folder / "faults.yaml").write_text("- {at_s: 3, for_s: 2, engine: prefill, kind: down}\n")
    report = simulated(folder, "--policy", "always-remote", "--faults", str(folder / "faults.yaml"))
    said = report.routers[0].simulation
    assert said.outcomes["completed"] == 80
    assert said.routes["only_local"] > 0


def test_what_goes_with_a_pipeline_is_refused(folder: Path) -> None:
    trace, chat = folder / "trace.jsonl", folder / "chat.yaml"
    asked = (simulate.command, str(trace), "--pipeline", str(chat))
    assert "--journal" in refused(*asked, "--journal", str(folder / "j"))
    assert "cost" in refused(simulate.command, str(trace), "--pipeline", str(folder / "costless.yaml"))
    assert "tokens_in" in refused(simulate.command, str(folder / "plain.jsonl"), "--pipeline", str(chat))
    assert "--on" in refused(profile.command, str(chat), "--on", "decode")
    assert "none.gguf" in refused(profile.command, str(chat))
    assert not (folder / "j").exists()


@pytest.mark.parametrize("option", ["--on", "--precision", "--shape", "--batch", "--threads", "--devices"])
def test_measuring_a_language_file_refuses_what_is_of_a_pipeline(folder: Path, option: str) -> None:
    value = {"--precision": "int8", "--shape": "x=1x3", "--batch": "4", "--threads": "2"}.get(option, folder)
    assert f"{option} goes with a pipeline" in refused(profile.command, folder / "chat.yaml", option, value)


def test_a_profile_of_other_engines_is_refused(folder: Path) -> None:
    other = known_profile(engines={"decode": known_profile().engines["decode"]})
    write_bytes(folder / "other.json", encode_json(other))
    language = load_language(folder / "chat.yaml")
    with pytest.raises(InputError, match="'prefill' is not in it"):
        load_profile(folder / "other.json", language)
    bent = msgspec.structs.replace(known_profile().engines["decode"], shape=[1.0])
    write_bytes(folder / "bent.json", encode_json(known_profile(engines={"decode": bent, "prefill": bent})))
    with pytest.raises(InputError, match="shape"):
        load_profile(folder / "bent.json", language)


def planned(folder: Path, *more: str, code: int = 0) -> LanguagePlan:
    asked = [str(folder / "trace.jsonl"), "--pipeline", str(folder / "chat.yaml")]
    limits = ["--first-token-ms", "3000", "--between-tokens-ms", "60", "--threads", "2", "--stretches", "2"]
    told = [*asked, "--profile", str(folder / "profile.json"), *limits, *more, "--json"]
    done = CliRunner().invoke(plan.command, told, catch_exceptions=False, standalone_mode=False)
    assert done.return_value == code
    return msgspec.json.decode(done.stdout, type=LanguagePlan)


def test_a_plan_says_whether_to_split_and_writes_the_fleet(folder: Path) -> None:
    found = planned(folder, "--out", str(folder / "plan"))
    assert {one.structure for one in found.fleets} == {"shared", "split"}
    assert found.verdict in ("split", "shared", "no difference")
    assert found.recommended in {one.name for one in found.fleets}
    written = load_language(folder / "plan" / "fleet.yaml")
    chosen = next(one for one in found.fleets if one.name == found.recommended)
    assert len(written.engines) == chosen.prefill + chosen.decode
    assert written.router.policy == chosen.policy


def test_a_plan_on_costs_that_the_file_states_says_that_nothing_was_measured(folder: Path) -> None:
    asked = [str(folder / "trace.jsonl"), "--pipeline", str(folder / "chat.yaml"), "--stretches", "2", "--threads", "2"]
    told = [*asked, "--first-token-ms", "3000", "--between-tokens-ms", "60", "--json"]
    done = CliRunner().invoke(plan.command, told, catch_exceptions=False, standalone_mode=False)
    found = msgspec.json.decode(done.stdout, type=LanguagePlan)
    assert found.basis == "modelled costs of all engines"
    assert any("cores and memory of their own" in warning for warning in found.warnings)


def test_limits_that_no_fleet_keeps_end_with_a_verdict_and_status_3(folder: Path) -> None:
    found = planned(folder, "--quantile", "0.99", "--between-tokens-ms", "1", code=plan.NEGATIVE)
    assert found.recommended is None
    assert found.verdict == "none holds"


def test_a_plan_without_limits_or_with_too_many_stretches_is_refused(folder: Path) -> None:
    asked = (plan.command, str(folder / "trace.jsonl"), "--pipeline", str(folder / "chat.yaml"))
    assert "--first-token-ms" in refused(*asked)
    limits = ("--first-token-ms", "100", "--between-tokens-ms", "100")
    costless = (plan.command, str(folder / "trace.jsonl"), "--pipeline", str(folder / "costless.yaml"))
    assert "--profile" in refused(*costless, *limits)
    known = ("--profile", str(folder / "profile.json"))
    assert "--stretches" in refused(*asked, *limits, *known, "--stretches", "50")
    assert "--budget" in refused(*asked, "--budget", str(folder / "chat.yaml"))


def test_a_portrait_of_tokens_says_what_is_held_and_met_again(folder: Path) -> None:
    asked = [str(folder / "trace.jsonl"), "--cache-tokens", "1000", "--answer-token-ms", "20", "--json"]
    done = CliRunner().invoke(portrait.command, asked, catch_exceptions=False)
    tokens = json.loads(done.stdout)["tokens"]
    assert tokens["kv"]["answer_token_ms"] == 20
    assert tokens["kv"]["tokens_max"] > 0
    assert tokens["prefixes"]["ideal_share"] > 0.3
