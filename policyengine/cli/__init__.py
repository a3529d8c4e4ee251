"""The command line: `policyengine VERB ...`.

Knows: which verbs there are, exit codes, how an error is shown to a person.
Must not know: what any verb does. A verb's module is imported only when it is invoked, so that help is instant.

Exit codes, the same for every verb: 0 the asked-for property holds; 1 the input is at fault; 2 the work could not be
done; 3 only warnings, and `--strict`; 4 nothing was checked; 5 a running engine refused the new version of its policy;
6 `run` was stopped by a guard; 7 `run` waits for a human. 130 and 141 are the shell's: interrupted, and nobody reads
the output any more.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any, NoReturn

import click

from policyengine.start import begin

VERBS: dict[str, str] = {
    "run": "Work on a task under a policy and show what the guards do.",
    "check": "Validate policies the way a running engine would.",
    "lint": "Find what a policy says that can hardly be meant.",
    "explain": "Show the values in force, and where every layer set them.",
    "explain-error": "Explain a problem code, with an example and its correction.",
    "schema": "Print the JSON Schema of policy files, for editors.",
    "diff": "Say what one policy makes tighter or looser than another.",
    "prove": "Prove that every rule can fire, alone and in the policy.",
    "test": "Play the tests of policies and say what they reach.",
    "eval": "Ask a policy about one event and show every rule's vote.",
    "replay": "Report what a policy would have done in recorded runs.",
    "backtest": "Count what policies would have done in recorded runs.",
    "tune": "Find better thresholds in recorded runs.",
    "runs": "Go on with runs that are kept, and compare recorded ones.",
    "extensions": "List, check and block extensions, or begin a package of them.",
    "inspect": "Look closely at one tool, or at a whole agent.",
    "status": "Say what is in force in a running engine.",
    "reload": "Have a running engine read its policy again, now.",
    "kill": "Keep every rule of a running engine from having an effect.",
    "hook": "Answer the hooks of coding agents, and install them.",
}
"""Every verb with its line in the help; each is the `command` of the module of its name (`_` for `-`)."""

OK, AT_FAULT, COULD_NOT, ONLY_WARNINGS, NOTHING, REFUSED, STOPPED, WAITING = 0, 1, 2, 3, 4, 5, 6, 7
INTERRUPTED, BROKEN_PIPE = 130, 141

PATIENCE_S = 5.0
"""How long the end of the process is held up by threads that somebody's code has started."""

DISTRIBUTION = "agent-policyengine"

FORMAT = "policyengine.format"
"""Under which key of a click context the form of problems stands where `--format` asked for another than `full`."""


class ReaderGoneError(Exception):
    """Nobody reads the output any more. Not an `OSError`: click would end the process with a code of its own."""


class Verbs(click.Group):
    """The group of all verbs: imports them late and maps errors to exit codes."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all verbs, in the order in which one meets them."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a verb's module and return its command."""
        if cmd_name not in VERBS:
            return None
        command: click.Command = import_module(f"policyengine.cli.{cmd_name.replace('-', '_')}").command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Say which verb may have been meant where there is none of that name."""
        if args and not args[0].startswith("-") and args[0] not in VERBS:
            from policyengine.policy.wording import suggestion

            ctx.fail(f"no verb {args[0]!r}; {suggestion(args[0], VERBS, 'verbs')}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the verbs without importing them."""
        with formatter.section("Verbs"):
            formatter.write_dl(list(VERBS.items()))

    def invoke(self, ctx: click.Context) -> Any:
        """Invoke the verb, and find out now whether its output arrived."""
        from policyengine.errors import ConfigError, ExtensionError

        try:
            try:
                code = super().invoke(ctx)
            except (ConfigError, ExtensionError) as error:
                if FORMAT not in ctx.meta:
                    raise
                from policyengine.cli.output import report

                report(error)
                code = AT_FAULT
            sys.stdout.flush()
        except BrokenPipeError:
            raise ReaderGoneError from None
        return code

    def main(self, *args: Any, **extra: Any) -> NoReturn:
        """Run a verb and end the process with its exit code."""
        run = super().main
        sys.exit(guarded(lambda: run(*args, **{**extra, "standalone_mode": False})))


@click.command(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name=DISTRIBUTION, prog_name="policyengine")
def cli() -> None:
    """A config-driven policy engine for LLM agent loops."""
    from policyengine.cli.output import configure_logging

    configure_logging()


def main() -> NoReturn:
    """Run the command line."""
    begin()  # where the script of an older installation starts here
    for name in ("stdout", "stderr"):  # `None` where the shell closed it: nobody reads, but the work is wanted
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - for the life of the process
    try:
        cli.main(prog_name="policyengine")
    finally:
        if sys.argv[1:2] != ["run"]:  # there, threads are those of the user's own tools, and may have work to do
            threading.Thread(target=_leave, args=(sys.exc_info()[1],), daemon=True).start()


def _leave(ending: BaseException | None) -> None:
    """End the process if code of an extension keeps it alive: the interpreter waits for such threads for ever."""
    time.sleep(PATIENCE_S)
    main_thread = threading.main_thread()
    held = [thread.name for thread in threading.enumerate() if thread is not main_thread and not thread.daemon]
    if not held:
        return  # what takes its time is the interpreter itself
    sys.stdout.flush()
    sys.stderr.write(f"not waited for: threads of extensions or tools that have not ended ({', '.join(held)})\n"[:1000])
    sys.stderr.flush()
    os._exit(ending.code if isinstance(ending, SystemExit) and isinstance(ending.code, int) else COULD_NOT)


def guarded(work: Callable[[], Any]) -> int:
    """Do the work and return its exit code; whatever it raises is shown once, on stderr."""
    from policyengine.errors import ConfigError, ExtensionError, PolicyEngineError, UsageError

    try:
        code = work()
    except ConfigError as error:
        from policyengine.policy.problems import render

        return _failed(render(error.problems))
    except (ExtensionError, UsageError) as error:
        return _failed(f"error: {error}")
    except PolicyEngineError as error:  # a store out of reach, a run that somebody else works on
        _failed(f"error: {error}")
        return COULD_NOT
    except click.ClickException as error:
        error.show()
        return AT_FAULT
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except ReaderGoneError:
        # Nobody reads any more: nothing may be written at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except Exception:  # noqa: BLE001 - the end of the process: the code tells apart what the interpreter would not
        import traceback

        traceback.print_exc()
        return COULD_NOT
    return code if isinstance(code, int) else OK


def _failed(text: str) -> int:
    from policyengine.visible import clean

    print(clean(text), file=sys.stderr)
    return AT_FAULT
