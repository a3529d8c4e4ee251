#!/usr/bin/env bash
# A guard of one's own, from `extensions new` to a live change of its threshold, with nothing but wheels.
#
#   .ci/wheel_check.sh REPO WORK     REPO: a checkout; WORK: a folder for everything that is written (made if missing)
#
# REPO is not written to. Ends with 0 only if every step holds; prints one line for each step.
# Needs Linux (GNU sed, timeout), Python 3.11 or later and pip (PYTHON=... chooses another interpreter).
set -euo pipefail

[ $# -eq 2 ] || { echo "usage: $0 REPO WORK" >&2; exit 2; }
repo=$(cd "$1" && pwd)
mkdir -p "$2"
work=$(mktemp -d "$(cd "$2" && pwd)/wheel_check.XXXXXX")
python=${PYTHON:-python3}
limit_s=${LIMIT_S:-30} # how long anything is waited for
unset PYTHONPATH PYTHONHOME VIRTUAL_ENV POLICYENGINE_BLOCK POLICYENGINE_SOCKET
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_QUIET=1 NO_COLOR=1
out="$work/out" err="$work/err" number=0 background=""

cleanup() {
  local status=$?
  if [ -n "$background" ]; then kill "$background" 2>/dev/null || true; fi
  if [ "$status" -ne 0 ]; then
    echo "FAILED in $work" >&2
  else
    rm -rf "$work"
  fi
}
trap cleanup EXIT

ok() { # ok TEXT: a step holds
  number=$((number + 1))
  printf 'ok %2d [%3d s] %s\n' "$number" "$SECONDS" "$1"
}

fail() {
  printf 'error: %s\n' "$1" >&2
  for file in "$out" "$err"; do
    if [ -s "$file" ]; then sed "s|^|  ${file##*/}: |" "$file" | tail -n 40 >&2; fi
  done
  exit 1
}

expect() { # expect CODE COMMAND...: the command ends with this code; what it prints is in $out and $err
  local want=$1 got=0
  shift
  "$@" >"$out" 2>"$err" || got=$?
  [ "$got" -eq "$want" ] || fail "exit code $got, not $want: $*"
}

says() { # says TEXT...: the last command printed each of them
  local text
  for text in "$@"; do
    grep -qF -- "$text" "$out" "$err" || fail "not printed: $text"
  done
}

never_says() {
  if grep -qF -- "$1" "$out" "$err"; then fail "printed: $1"; fi
}

wait_for() { # wait_for WHAT COMMAND...: until the command succeeds
  local what=$1 deadline=$((SECONDS + limit_s))
  shift
  until "$@" >"$out" 2>"$err"; do
    [ "$SECONDS" -lt "$deadline" ] || fail "waited $limit_s s for $what"
    if [ -n "$background" ] && ! kill -0 "$background" 2>/dev/null; then fail "the program ended before $what"; fi
    sleep 0.1
  done
}

# --- wheels --------------------------------------------------------------------------------------------------------

mkdir "$work/engine" "$work/wheels" "$work/newer" "$work/here"
tar -C "$repo" --exclude=./.git --exclude='.venv*' --exclude='./.*_cache' --exclude=./.hypothesis --exclude=./build \
  --exclude='./*.egg-info' -cf - . | tar -C "$work/engine" -xf -
"$python" -m venv "$work/author"
author="$work/author/bin"
expect 0 "$author/pip" wheel --no-deps -w "$work/wheels" "$work/engine"
expect 0 "$author/pip" install "$work"/wheels/agent_policyengine-*.whl
rm -rf "$work/engine"
ok "the wheel of policyengine is built and installed"

cd "$work"
expect 0 "$author/policyengine" extensions new acme-guard
says "next: cd acme-guard, pip install -e '.[test]', pytest"
expect 0 "$author/pip" wheel --no-deps -w "$work/wheels" "$work/acme-guard"
wheel=$(echo "$work"/wheels/acme_guard-0.1.0-*.whl)
expect 0 "$author/python" -m zipfile -l "$wheel"
says acme_guard/__init__.py acme_guard/templates.py acme_guard/py.typed entry_points.txt
never_says test_acme_guard
ok "extensions new acme-guard; its wheel has the module, the templates, py.typed and the entry point"

"$python" -m venv "$work/user"
user="$work/user/bin" pe="$work/user/bin/policyengine"
expect 0 "$user/pip" install "$work"/wheels/agent_policyengine-*.whl "$wheel[test]"
cp -R "$work/acme-guard/policies" "$work/acme-guard/tests" "$work/acme-guard/pyproject.toml" "$work/here"
sed -i.bak 's/^version = .*/version = "0.1.1"/' "$work/acme-guard/pyproject.toml"
expect 0 "$author/pip" wheel --no-deps -w "$work/newer" "$work/acme-guard"
rm -rf "$work/acme-guard" "$work/author"
cd "$work/here" # from here on there is no source, of the engine or of the package
expect 0 "$user/python" -c "
import acme_guard, policyengine
assert all('/site-packages/' in module.__file__ for module in (acme_guard, policyengine)), 'not from the wheels'"
ok "both wheels are installed in a fresh environment, and no source is left"

# --- found, checked, used, proved, tested --------------------------------------------------------------------------

policy=policies/acme-guard.yaml
imports() { # imports ARGUMENTS...: run policyengine; has the package been imported when it ends?
  "$user/python" -c "
import runpy, sys
sys.argv[0] = 'policyengine'
try:
    runpy.run_module('policyengine', run_name='__main__')
except SystemExit:
    pass
sys.exit('acme_guard' not in sys.modules)" "$@" >"$out" 2>"$err"
}

if imports extensions list --no-import; then fail "list --no-import imports the package"; fi
says acme.guard 0.1.0
expect 0 "$pe" extensions list --no-import --json
cp "$out" list.json
expect 0 "$user/python" - list.json <<'PY'
import json, sys
[found] = [e for e in json.load(open(sys.argv[1]))["extensions"] if e["distribution"] == "acme-guard"]
assert (found["name"], found["version"], found["builtin"]) == ("acme.guard", "0.1.0", False), found
assert not found["blocked"] and found["engine"], found
PY
ok "extensions list --no-import: found, and not imported"

expect 0 "$pe" extensions list
says acme.guard "acme-guard 0.1.0" before_tool_call
ok "extensions list: found, with its hook"

expect 0 "$pe" extensions check acme-guard
says "ok: acme.guard (acme-guard 0.1.0): before_tool_call; 1 proof"
ok "extensions check"

sed '/^requires:/,/extensions: {acme-guard/d' "$policy" >unlisted.yaml
expect 1 "$pe" check unlisted.yaml
says "error[X402]"
if imports check unlisted.yaml; then fail "a package that no policy lists was imported"; fi
sed 's/>=0.1,<1/>=9/' "$policy" >future.yaml
expect 1 "$pe" check future.yaml
says "acme-guard" "error[X40"
expect 0 "$pe" check --strict "$policy"
says "ok: $policy (acme-guard), 1 rule"
imports check "$policy" || fail "the package that the policy lists was not imported"
ok "used in a policy: only where requires.extensions lists it, in that range"

expect 0 "$pe" prove --strict "$policy"
says "acme-guard: 1 proven, 0 fail, 0 unproven"
expect 0 "$pe" lint --strict "$policy"
expect 0 "$pe" explain "$policy" extensions.acme_guard.with.limit
says "extensions.acme_guard.with.limit = 3" "$policy:9:19  (in force)"
expect 0 "$pe" schema --package acme-guard --output policy.schema.json
grep -q acme.guard policy.schema.json || fail "the schema does not know the extension"
ok "prove --strict, lint, explain, schema"

expect 0 "$pe" test policies --fail-under 100
says "3 pass, 0 fail"
ok "policyengine test, all of it covered"

expect 0 "$user/pytest" -q
says passed
never_says failed
ok "its own pytest, against the wheel"

# --- blocked and unblocked -----------------------------------------------------------------------------------------

expect 0 "$pe" extensions block acme-guard
says 'block: ["acme-guard"]' "POLICYENGINE_BLOCK=acme-guard"
expect 0 "$pe" extensions block acme-guard --overlay blocks.yaml --target acme-guard
expect 1 "$pe" check "$policy" --overlay blocks.yaml
says "error[X410]" "blocked by 'acme-guard' of blocks.yaml"
if imports check "$policy" --overlay blocks.yaml; then fail "what an overlay blocks was imported"; fi
rm blocks.yaml
expect 0 "$pe" check "$policy"
ok "extensions block: an overlay blocks the package unimported, without it the policy is in order"

sed 's/^requires:/requires:\n  block: ["acme.*"]/' "$policy" >blocked.yaml
expect 1 "$pe" check blocked.yaml
says "error[X410]" "blocked by 'acme.*' of blocked.yaml"
expect 1 "$pe" run --policy blocked.yaml
ok "requires.block of the policy"

export POLICYENGINE_BLOCK='acme-*'
expect 1 "$pe" check "$policy"
says "error[X410]" POLICYENGINE_BLOCK
expect 1 "$pe" prove "$policy"
if imports extensions list; then fail "what the environment blocks was imported"; fi
expect 0 "$pe" extensions list --no-import
says POLICYENGINE_BLOCK
unset POLICYENGINE_BLOCK
expect 0 "$pe" check "$policy"
ok "POLICYENGINE_BLOCK, and unblocked again"

# --- reconfigured while it works -----------------------------------------------------------------------------------

live() { # live LIMIT: the policy with another threshold, under a new name and then renamed
  sed -e "s/{limit: 3}/{limit: $1}/" "$policy" >live.new
  printf 'reload: {pin: iteration}\ndefaults: {timeout: 10s}\n' >>live.new # a busy machine is no fault of the guard
  mv live.new live.yaml
}

live 2
cat >program.py <<'PY'
"""An agent that calls one tool again and again, while its policy is edited."""

import sys
import time
from pathlib import Path

from policyengine import Agent, Engine, ModelResponse, ToolCall

POLICY = Path("live.yaml")
engine = Engine("live.yaml")
told, ran = [], []  # what the model read before each round, and which calls ran


def edit(limit):
    text = POLICY.read_text()
    before = text[text.index("{limit: ") :].partition("}")[0]
    new = POLICY.with_suffix(".new")
    new.write_text(text.replace(before, f"{{limit: {limit}"))
    new.replace(POLICY)


def until(what, holds):
    deadline = time.monotonic() + float(sys.argv[1])
    while not holds():
        assert time.monotonic() < deadline, f"waited too long: {what}"
        time.sleep(0.02)


def generation():
    return engine.status().generation


class Model:
    name = "scripted"

    def __init__(self):
        self.round = 0

    def complete(self, request):
        self.round += 1
        told.append(request.messages[-1].text)
        if self.round == 4:  # limit 2: calls 1 and 2 ran, call 3 was refused
            edit(3)
            until("the higher limit", lambda: generation() == 2)
        if self.round == 6:  # limit 3: in force from round 5 on
            edit(0)
            until("the refusal of a bad edit", lambda: engine.rejected is not None)
            assert generation() == 2
        if self.round == 7:
            edit(5)
            until("the second higher limit", lambda: generation() == 3)
        if self.round == 10:
            return ModelResponse("done")
        return ModelResponse(tool_calls=(ToolCall(f"call-{self.round}", "search", f'{{"page": {self.round}}}'),))


def search(page: int) -> str:
    """Search a page."""
    ran.append(page)
    return "no entry"


with engine.watch():
    outcome = Agent(engine, Model(), [search]).run("Find the opening hours.")
print(outcome.status, ran, generation())
print("\n".join(told))
# A new policy is taken when a round begins, so the round in which it was edited is judged by the old one; the count
# goes on over both changes.
assert outcome.status == "completed", outcome
assert ran == [1, 2, 5, 8, 9], ran
assert generation() == 3
PY
expect 0 timeout "$((limit_s * 4))" "$user/python" program.py "$limit_s"
says "completed [1, 2, 5, 8, 9] 3" "the limit is 2" "the limit is 3"
ok "engine.watch(): two edits of the threshold reach a run under way, a bad one does not, and no call is forgotten"

live 1
cat >my_tools.py <<'PY'
import time
from pathlib import Path


def search(page: int) -> str:
    """Search a page; the answer comes when the file go-PAGE is there."""
    Path(f"asked-{page}").touch()
    for _ in range(1200):
        if Path(f"go-{page}").exists():
            return "no entry"
        time.sleep(0.05)
    raise TimeoutError(f"no file go-{page}")


TOOLS = [search]
PY
cat >script.yaml <<'YAML'
task: Find the opening hours.
turns:
  - calls: [{tool: search, args: {page: 1}}]
  - calls: [{tool: search, args: {page: 2}}]
  - calls: [{tool: search, args: {page: 3}}]
  - calls: [{tool: search, args: {page: 4}}]
  - text: I could not find them.
YAML
in_status() { # in_status EXPRESSION: does it hold of `status --json`?
  "$pe" status --json >status.json && "$user/python" -c "
import json, sys
status = json.load(open('status.json'))
sys.exit(not ($1))"
}
export POLICYENGINE_SOCKET=engine.sock
expect 2 "$pe" status
"$pe" run --policy live.yaml --script script.yaml --tools my_tools:TOOLS --watch --control engine.sock \
  >account.txt 2>&1 &
background=$!
wait_for "the first call" test -e asked-1
expect 0 "$pe" status
says "acme-guard" "generation 1" "watching   yes" "1 under way"
live 2
wait_for "the watch to take limit 2" in_status "status['generation'] == 2 and status['runs_active'] == 1"
touch go-1
wait_for "the second call, which limit 1 would have refused" test -e asked-2
ok "run --watch --control: status answers, and an edited threshold is in force in the next round"

live 0
expect 5 "$pe" reload
says "error[S205]" "0 is too small" "refused; policy acme-guard generation 2 stays in force"
expect 0 "$pe" status
says "rejected" "generation 2"
live 3
expect 0 "$pe" reload
expect 0 in_status "status['generation'] == 3 and not status['rejection']"
ok "reload: a bad threshold is refused with 5 and a good one taken at once"

touch go-2
wait_for "the third call" test -e asked-3
expect 0 "$user/pip" install --no-deps --force-reinstall "$work"/newer/acme_guard-0.1.1-*.whl
expect 0 in_status "[(p['name'], p['imported'], p['installed']) for p in status['restart_needed']] == [('acme-guard', '0.1.0', '0.1.1')]"
touch go-3
code=0
wait "$background" || code=$?
background=""
cp account.txt "$out"
[ "$code" -eq 0 ] || fail "run ended with $code"
says "generation 2" "generation 3" "acme_guard, live.yaml" "(observed 4, limit 3)" \
  "completed  5 rounds, 4 calls (3 run), 1 intervention"
[ ! -e asked-4 ] || fail "a call that was refused ran"
expect 2 "$pe" status
ok "the run ended under the last threshold; status had named the package that was upgraded meanwhile"

echo "all $number steps hold ($SECONDS s)"
