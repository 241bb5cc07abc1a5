"""The command line: shapes of output, exit codes, and one clear line for everything that fails."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from qgpu.cli import COMMANDS, main
from qgpu.cli.options import parse_arg
from qgpu.errors import UsageError
from tests.host.small import narrow_base

DOT = """
__global__ void dot(const int *a, const int *b, int *out) {
    int i = threadIdx.x;
    atomicAdd(out, a[i] * b[i]);
}
"""
ARGS = ["--block", "3", "--arg", "[1,2,3]", "--arg", "[4,5,6]", "--arg", "zeros:1"]
EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.cu"))


def call(*argv: Any) -> Result:
    return CliRunner().invoke(main, [str(arg) for arg in argv])


@pytest.fixture
def dot(tmp_path: Path) -> Path:
    path = tmp_path / "dot.cu"
    path.write_text(DOT)
    return path


def source(tmp_path: Path, text: str, name: str = "k.cu") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself_with_an_example(name: str) -> None:
    result = call(name, "--help")
    assert result.exit_code == 0
    assert "Usage:" in result.stdout
    assert f"Example:  qgpu {name} " in result.stdout or name == "doctor"


def test_the_group_names_every_command() -> None:
    result = call("--help")
    assert result.exit_code == 0
    assert all(name in result.stdout for name in COMMANDS)
    assert call().exit_code == 2
    assert "qgpu" in call("--version").stdout


def test_run_prints_one_json_object(dot: Path) -> None:
    result = call("run", dot, *ARGS, "--interp", "--check", "--json")
    assert result.exit_code == 0
    assert result.stderr == ""
    got = json.loads(result.stdout)
    assert list(got) == [
        "kernel", "backend", "args", "tokens", "exec_tokens", "seconds", "check", "error",
    ]  # fmt: skip
    assert got["kernel"] == "dot"
    assert got["backend"] == "interp"
    assert got["args"] == [[1, 2, 3], [4, 5, 6], [32]]
    assert got["check"] == "ok"
    assert got["error"] is None
    assert 0 < got["exec_tokens"] < got["tokens"] <= 24


def test_run_shows_arrays_sizes_and_trace(dot: Path) -> None:
    result = call("run", dot, *ARGS, "--interp", "--check")
    assert result.exit_code == 0
    assert "dot: CUDA 5 lines, PTX " in result.stdout
    assert "arg 2: [32]" in result.stdout
    assert "Exec(block=0, warp=0, mask=7)" in result.stdout
    assert result.stdout.endswith("check: ok\n")
    assert "\x1b" not in result.stdout


def test_scalars_are_null_and_typed_arrays_keep_their_type(tmp_path: Path) -> None:
    text = "__global__ void k(unsigned char *a, int n) { a[threadIdx.x] += n; }"
    path = source(tmp_path, text)
    result = call("run", path, "--block", 3, "--arg", "[250,0x10,1]:uint8", "--arg", -2,
                  "--interp", "--json")  # fmt: skip
    assert json.loads(result.stdout)["args"] == [[248, 14, 255], None]


def test_an_array_from_a_file(dot: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([7, 8, 9], np.int32))
    argv = [f"@{tmp_path}/a.npy" if arg == "[1,2,3]" else arg for arg in ARGS]
    result = call("run", dot, *argv, "--interp", "--json")
    assert json.loads(result.stdout)["args"][2] == [122]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_an_example_runs_as_its_header_says(path: Path) -> None:
    result = call("run", path, "--interp", "--check", "--json")
    assert result.exit_code == 0, result.stderr
    args = json.loads(result.stdout)["args"]
    for line in path.read_text().splitlines():
        if line.startswith("// expect "):
            index, values = line.removeprefix("// expect ").split(": ")
            assert args[int(index)] == json.loads(values)


def test_options_override_the_header() -> None:
    result = call("run", EXAMPLES[0], "--arg", "[1,1,1]", "--arg", "[1,2,3]", "--arg", "[100]",
                  "--block", 2, "--interp", "--json")  # fmt: skip
    assert json.loads(result.stdout)["args"][2] == [103]


def test_compile_shows_every_stage(dot: Path, tmp_path: Path) -> None:
    ptx = call("compile", dot).stdout
    assert ".visible .entry" in ptx
    again = call("run", source(tmp_path, ptx, "dot.ptx"), *ARGS, "--interp", "--json")
    assert json.loads(again.stdout)["args"][2] == [32]
    blocks = call("compile", dot, "--emit", "blocks", "--block", 3).stdout
    assert blocks.startswith("B0:\n")
    names = call("compile", dot, "--emit", "tokens", *ARGS).stdout.split()
    assert names[-1] == "<|gpu_go|>"
    assert names[0] == "<|gpu_rom_b0_r0|>"


NO_CHECKPOINT = '{"model_type": "llama"}'
FAILURES: list[tuple[str, int, list[str], str]] = [
    # what is wrong, exit code, options, the line
    ("__global__ void k(int *a) {\n  a[0] = ;\n}", 3, ["--arg", "zeros:1"], "k.cu:2: "),
    ("__global__ void k(float *a) { a[0] *= 1.5f; }", 3, ["--arg", "zeros:1"],
     "computes integers only"),
    ("__global__ void k(int *a, float x) { }", 3, ["--arg", "zeros:1", "--arg", "1"],
     "floating point"),
    (DOT, 2, ["--kernel", "dott", *ARGS], "has no kernel dott; it has dot"),
    (DOT, 2, ["--arg", "[1]"], "kernel dot takes 3 arguments, 1 given"),
    (DOT, 2, ["--arg", "[1,,2]"], "--arg [1,,2]: write [1,2,3], zeros:N"),
    (DOT, 2, ["--arg", "[1]:float32"], "the type is one of int8"),
    (DOT, 2, ["--arg", "@none.npy"], "cannot read an array from none.npy"),
    (DOT, 2, ["--block", "x"], "'x' is not X[,Y[,Z]]"),
    (DOT, 2, ["--block", "0", *ARGS[2:]], "every size must be at least 1"),
    (DOT, 2, ["--frob"], "No such option"),
    (DOT, 3, ["--block", "33", *ARGS[2:]], "needs 33 threads in a CUDA block, the machine has 32"),
    (DOT, 3, ["--arg", "zeros:600", *ARGS[4:]], "the machine has 512"),
    ("__global__ void k(volatile int *a) { while (1) a[0]++; }", 1,
     ["--arg", "zeros:1", "--max-tokens", "500"], "did not end within 500 tokens"),
    (DOT, 2, ["--model", "x", *ARGS], "exclude each other"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "code", "options", "line"), FAILURES)
def test_a_failure_is_one_line_and_an_exit_code(
    tmp_path: Path, text: str, code: int, options: list[str], line: str
) -> None:
    path = source(tmp_path, text)
    plain = call("run", path, "--interp", *options)
    assert plain.exit_code == code
    assert plain.stdout == ""
    assert plain.stderr.count("\n") == 1
    assert line in plain.stderr
    assert "Traceback" not in plain.stderr
    as_json = call("run", path, "--interp", "--json", *options)
    assert as_json.exit_code == code
    assert f"error: {json.loads(as_json.stdout)['error']}\n" == as_json.stderr


def test_a_file_that_is_not_ptx_is_not_printed_whole(tmp_path: Path) -> None:
    junk = source(tmp_path, '{"steps": [' + "0, " * 4000 + "0]}", "junk.ptx")
    plain = call("run", junk, "--interp")
    assert plain.exit_code == 3
    assert "PTX syntax error" in plain.stderr
    assert len(plain.stderr) < 400


def test_a_missing_or_foreign_model_folder(dot: Path, tmp_path: Path) -> None:
    none = tmp_path / "none"
    for command in (["run", dot, *ARGS], ["verify"], ["kl", "--base", none], ["chat"],
                    ["quantise", "--out", tmp_path / "q"]):  # fmt: skip
        missing = call(*command, "--model", none)
        assert missing.exit_code == 2, command
        assert missing.stderr == f"error: there is no model folder {none}\n"
        assert [file.name for file in tmp_path.iterdir()] == ["dot.cu"]
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "config.json").write_text(NO_CHECKPOINT)
    foreign = call("run", dot, *ARGS, "--model", tmp_path / "foreign", "--json")
    assert foreign.exit_code == 1
    assert "holds a llama model" in json.loads(foreign.stdout)["error"]
    assert call("verify", "--model", tmp_path / "foreign").exit_code == 1


def test_no_model_says_how_to_get_one(dot: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QGPU_MODEL", "/nowhere")
    result = call("run", dot, *ARGS)
    assert result.exit_code == 2
    assert "make one with `qgpu build`" in result.stderr


def test_no_clang(dot: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from qgpu.ptx import clang

    monkeypatch.setattr(clang, "_system_clangs", list)
    monkeypatch.setattr(clang, "_zig_clang", list)
    clang._find_clang.cache_clear()
    try:
        result = call("run", dot, *ARGS, "--interp")
    finally:
        clang._find_clang.cache_clear()
    assert result.exit_code != 0
    assert "clang" in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_base_that_is_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    missing = call("build", "--base", "./nowhere", "--out", tmp_path / "m")
    assert missing.exit_code == 2
    assert missing.stderr == "error: there is no model folder ./nowhere\n"


def test_a_base_that_is_too_narrow_is_refused_with_the_numbers(tmp_path: Path) -> None:
    narrow_base(tmp_path / "base")
    result = call("build", "--base", tmp_path / "base", "--out", tmp_path / "out")
    assert result.exit_code == 3
    assert "error: hidden size 64 is too narrow" in result.stderr
    assert [file.name for file in tmp_path.iterdir()] == ["base"]
    plain = call("verify", "--model", tmp_path / "base")
    assert plain.exit_code == 1
    assert "has no GPU in it" in plain.stderr


def test_an_unexpected_fault_is_one_line_too(dot: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import qgpu.cli.run as module

    def fail(*args: Any, **options: Any) -> None:
        raise ZeroDivisionError("a\nb")

    monkeypatch.setattr(module, "launch", fail)
    result = call("run", dot, *ARGS, "--interp")
    assert result.exit_code == 1
    assert result.stderr == (
        "error: unexpected ZeroDivisionError: a b (QGPU_DEBUG=1 shows where)\n"
    )


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5", 5), ("-0x10", -16), ("0xffffffff", 0xFFFFFFFF), ("007", 7),
        ("[1, -2,0x3]", [1, -2, 3]), ("[0xffffffff]", [-1]), ("[]", []), ("zeros:3", [0, 0, 0]),
        ("zeros:2:uint8", [0, 0]), ("[255]:int8", [-1]),
    ],
)  # fmt: skip
def test_arg_specs(text: str, value: Any) -> None:
    got = parse_arg(text)
    assert (got if isinstance(got, int) else got.tolist()) == value


@pytest.mark.parametrize("text", ["", "x", "1.5", "[1", "zeros:", "zeros:-1", "[4294967296]", "@"])
def test_bad_arg_specs(text: str) -> None:
    with pytest.raises(UsageError):
        parse_arg(text)


def test_doctor_reports_what_it_found(monkeypatch: pytest.MonkeyPatch) -> None:
    result = call("doctor", "--json")
    got = json.loads(result.stdout)
    found = {row["what"]: row for row in got["findings"]}
    assert found["torch"]["ok"] is True
    assert found["clang"]["ok"] is True
    assert got["ok"] is (got["error"] is None) is (result.exit_code == 0)


def test_doctor_fails_with_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    from qgpu.host import doctor

    monkeypatch.setattr(doctor, "PACKAGES", ("numpy", "no-such-package"))
    plain = call("doctor")
    assert plain.exit_code == 1
    assert "pip install no-such-package" in plain.stdout
    assert plain.stderr.startswith("error: missing, broken or too small: no-such-package")
    got = json.loads(call("doctor", "--json").stdout)
    assert got["ok"] is False
    assert f"error: {got['error']}\n" == plain.stderr
    assert {row["what"]: row["ok"] for row in got["findings"]}["no-such-package"] is False


# Each command that has --json, called so that it fails.
JSON_FAILURES = [
    ["run", "none.cu"], ["run", "none.cu", "--frob"], ["run"],
    ["build", "--base", "./none"], ["standin", "--like", "none"],
    ["standin"], ["verify", "--model", "none"], ["kl", "--base", "none"], ["kl"],
    ["quantise", "--model", "none", "--out", "q"], ["doctor", "--frob"],
    ["chat", "--model", "none"], ["chat", "--once", "1?", "--interp"],
    ["eval", "chat", "--model", "none"], ["trace", "none.json", "--html", "t.html"],
    ["trace", "none.json"],
]  # fmt: skip


@pytest.mark.parametrize("argv", JSON_FAILURES, ids=" ".join)
def test_under_json_a_failure_is_one_object_with_the_line_of_stderr(
    argv: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = call(*argv, "--json")
    assert result.exit_code == 2
    assert result.stdout.count("\n") == result.stderr.count("\n") == 1
    assert f"error: {json.loads(result.stdout)['error']}\n" == result.stderr
    assert not list(tmp_path.iterdir())


def test_a_failed_launch_is_named_and_keeps_what_was_known(tmp_path: Path) -> None:
    text = "__global__ void spin(volatile int *a) { while (1) a[0]++; }"
    result = call("run", source(tmp_path, text), "--arg", "zeros:1", "--max-tokens", 200,
                  "--interp", "--json")  # fmt: skip
    got = json.loads(result.stdout)
    assert (got["kernel"], got["backend"]) == ("spin", "interp")
    assert (got["args"], got["tokens"]) == ([], None)
    assert "did not end within 200 tokens" in got["error"]


def test_the_sanitizer_s_findings_are_in_the_object(tmp_path: Path) -> None:
    text = "__global__ void k(int *a) { a[threadIdx.x + 1] = 1; }"
    options = ["--block", "2", "--arg", "zeros:2", "--interp", "--sanitize"]
    as_json = call("run", source(tmp_path, text), *options, "--json")
    got = json.loads(as_json.stdout)
    assert as_json.exit_code == 1
    assert (len(got["findings"]), got["error"]) == (1, "the sanitizer has 1 finding")
    assert "k.cu:1: " in got["findings"][0]
    assert as_json.stderr == "error: the sanitizer has 1 finding\n"
    plain = call("run", tmp_path / "k.cu", *options)
    assert plain.stderr == f"{got['findings'][0]}\n" + as_json.stderr
    clean = call("run", tmp_path / "k.cu", *options[:2], "--arg", "zeros:3", *options[4:], "--json")
    assert (json.loads(clean.stdout)["findings"], clean.exit_code) == ([], 0)


def test_an_array_that_no_machine_holds_is_refused_by_its_words(dot: Path) -> None:
    for count in (600, 999999999999):
        result = call("run", dot, *ARGS[:-1], f"zeros:{count}", "--interp")
        assert result.exit_code == 3
        assert "words of memory for its arrays, the machine has 512" in result.stderr


def test_an_integer_for_a_pointer_is_refused_but_null_is_not(tmp_path: Path) -> None:
    text = "__global__ void k(int *a, int *b) { if (b) a[0] = b[0]; else a[0] = 7; }"
    argv = ["run", source(tmp_path, text), "--arg", "zeros:1", "--interp", "--json"]
    refused = call(*argv, "--arg", "5")
    assert refused.exit_code == 2
    assert "argument 2 is an integer, but the kernel takes a pointer" in refused.stderr
    assert json.loads(call(*argv, "--arg", "0").stdout)["args"] == [[7], None]


def test_a_wrong_number_of_arguments_is_counted_in_english(tmp_path: Path) -> None:
    path = source(tmp_path, "__global__ void k(int *a) { a[0] = 1; }")
    assert "k takes 1 argument, 0 given" in call("run", path, "--interp").stderr


# --- files and numbers that are not what they should be -------------------------------------------


def unusable(tmp_path: Path, kind: str) -> Path:
    path = tmp_path / "k.cu"
    if kind == "a folder":
        path.mkdir()
    elif kind == "not UTF-8":
        path.write_bytes(b"__global__ void k() { /* \xff\xfe */ }")
    elif kind != "missing":
        path.write_bytes({"empty": b"", "blank": b"\n\n", "binary": bytes(range(256))}[kind])
    return path


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        ("a folder", "Is a directory"), ("missing", "No such file or directory"),
        ("not UTF-8", "it is not UTF-8 text"), ("binary", "it is not UTF-8 text"),
        ("empty", "has no kernel"), ("blank", "has no kernel"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("command", ["run", "compile"])
def test_a_source_that_is_none(tmp_path: Path, command: str, kind: str, line: str) -> None:
    path = unusable(tmp_path, kind)
    result = call(command, path)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert line in result.stderr and str(path) in result.stderr


@pytest.mark.parametrize(
    ("options", "code", "line"),
    [
        (["--block", "0"], 2, "every size must be at least 1"),
        (["--grid", "0"], 2, "every size must be at least 1"),
        (["--grid", "-1"], 2, "every size must be at least 1"),
        (["--grid", "1,2,3,4"], 2, "more than three sizes"),
        (["--grid", "1,,2"], 2, "is not X[,Y[,Z]]"),
        (["--grid", str(10**30)], 2, "every size must be less than"),
        (["--block", "9" * 5000], 2, "is not X[,Y[,Z]]"),
        (["--block", "32,32,32"], 3, "needs 32768 threads in a CUDA block, the machine has 32"),
        (["--shared", "-1"], 2, "--shared"),
        (["--shared", "9" * 30], 3, "the machine has 512"),
        (["--shared", "x"], 2, "--shared"),
        (["--max-tokens", "0"], 2, "must be at least 1"),
        (["--arg", "9" * 30], 2, "does not fit"),
        (["--arg", "9" * 5000], 2, "write [1,2,3], zeros:N"),
        (["--arg", "[" + "9" * 500 + "]"], 2, "more than 60 digits does not fit 32 bits"),
        (["--trace", "/nowhere/t.json"], 2, "cannot write /nowhere/t.json: No such file"),
        (["--trace", "/"], 2, "cannot write /: it is a folder"),
    ],
)  # fmt: skip
def test_numbers_and_paths_that_cannot_be(
    tmp_path: Path, options: list[str], code: int, line: str
) -> None:
    path = source(tmp_path, "__global__ void k(int n) { }")
    given = [] if "--arg" in options else ["--arg", "1"]
    result = call("run", path, "--interp", *given, *options)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (code, "", 1)
    assert line in result.stderr
    assert len(result.stderr) < 400


@pytest.mark.parametrize(
    "header", ["grid=0", "grid=x", "block=1,2,3,4", "shared=x", "shared=-1", "kernel=none"]
)
def test_a_header_that_describes_no_launch(tmp_path: Path, header: str) -> None:
    path = source(tmp_path, f"// qgpu: {header}\n__global__ void k(int *a) {{ a[0] = 1; }}")
    result = call("run", path, "--interp", "--arg", "zeros:1")
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert "unexpected" not in result.stderr


@pytest.mark.parametrize("content", [b"", b"no array", b"\x93NUMPY\x01\x00", None])
def test_an_array_file_that_is_none(dot: Path, tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "a.npy"
    path.mkdir() if content is None else path.write_bytes(content)
    result = call("run", dot, *ARGS[:2], "--arg", f"@{path}", *ARGS[4:], "--interp")
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert f"cannot read an array from {path}: " in result.stderr


def test_a_float_array_and_an_archive_are_refused(dot: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "f.npy", np.ones(3))
    np.savez(tmp_path / "z.npz", np.ones(3))
    for name, line in (("f.npy", "is an array of float64"), ("z.npz", "is an archive of arrays")):
        result = call("run", dot, *ARGS[:2], "--arg", f"@{tmp_path / name}", *ARGS[4:], "--interp")
        assert result.exit_code == 2
        assert line in result.stderr


def test_a_trace_page_that_cannot_be_written(dot: Path, tmp_path: Path) -> None:
    assert call("run", dot, *ARGS, "--interp", "--trace", tmp_path / "t.json").exit_code == 0
    for place, why in (("none/t.html", "No such file"), (".", "")):
        result = call("trace", tmp_path / "t.json", "--html", tmp_path / place)
        assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
        assert why in result.stderr
    written = call("trace", tmp_path / "t.json", "--html", tmp_path / "t.html", "--json")
    assert json.loads(written.stdout) == {
        "tokens": 14, "written": [str(tmp_path / "t.html")], "error": None,
    }  # fmt: skip


# --- the process: pipes, full disks, signals ------------------------------------------------------


def shell(command: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True,
                          timeout=60, **options)  # fmt: skip


QGPU = f"{sys.executable} -m qgpu"


def test_a_reader_that_has_gone_ends_it_quietly(dot: Path) -> None:
    launch = shlex.join(["run", str(dot), *ARGS, "--interp"])
    for command in (f"compile {dot}", f"compile {dot} --emit tokens", launch, f"{launch} --json"):
        result = shell(f"({QGPU} {command}; echo $? >&2) | true")
        assert result.stderr == "1\n", command


def test_output_onto_a_full_disk_is_one_line(dot: Path) -> None:
    for more in ("", " --json"):
        result = shell(f"{QGPU} run {dot} --interp {shlex.join(ARGS)}{more} > /dev/full")
        assert result.returncode == 1
        assert result.stderr == "error: the output: No space left on device\n"


def test_ctrl_c_is_one_line_and_130(tmp_path: Path) -> None:
    text = "__global__ void k(volatile int *a) { while (1) a[0]++; }"
    argv = [sys.executable, "-m", "qgpu", "run", source(tmp_path, text), "--arg", "zeros:1",
            "--interp", "--tokens", "--max-tokens", str(10**9)]  # fmt: skip
    with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        process.stderr.readline()
        process.send_signal(signal.SIGINT)
        last = process.stderr.read().splitlines()[-1]
        assert process.wait(20) == 130
    assert last == "error: interrupted"
