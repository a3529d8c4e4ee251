"""Every problem code and the one sentence that explains it (`policyengine explain-error CODE`).

Knows: the stable table. Must not know: who reports a code.

Families: Y1xx text of a file, S2xx schema, M3xx layers, X4xx extensions and packages, R5xx references and
reachability, L6xx what `policyengine lint` finds, E8xx environment, T9xx tests of policies. A code keeps its meaning
for good; a code that is no longer used is not given away.
"""

from __future__ import annotations

CODES: dict[str, str] = {
    # text
    "Y101": "A policy file may be at most 1 MiB large.",
    "Y102": "A policy file must be UTF-8 text; UTF-16, UTF-32 and Latin-1 files are refused.",
    "Y103": (
        "The file holds a character that is invisible, reorders text or acts as a hidden line break; inside quotes "
        "it can be written as an escape."
    ),
    "Y104": "The text is not valid YAML, JSON or JSON5.",
    "Y105": "Mappings and lists may be nested at most 40 levels deep.",
    "Y106": "The file has more than 200,000 elements.",
    "Y107": "A policy file holds exactly one document.",
    "Y108": "Anchors and aliases are refused, because a few bytes of them can expand to gigabytes.",
    "Y109": "Tags are refused: a value has the type it is written as.",
    "Y110": "Directives such as %YAML are refused.",
    "Y111": "Merge keys are refused; use `extends` or an overlay, which keep track of where a value came from.",
    "Y112": "The same key stands twice in one mapping, and only one of the two could be meant.",
    "Y113": "A key must be a non-empty string; quote it if it looks like a number, a date, true, false or null.",
    "Y114": (
        "The plain value means different things to different YAML readers (octal, sexagesimal, dates, underscores, "
        "exponents); write it plainly or quote it."
    ),
    "Y115": "A number must be finite and fit into 64 bits.",
    "Y116": "The file is empty, or holds only comments.",
    "Y117": "The document is not a mapping; often the space after a colon is missing.",
    "Y118": "Tabs are refused outside of quotes, block texts and comments, because readers disagree about their width.",
    "Y119": "JSON5 beyond plain JSON is slow to read and limited to 32 KiB; write plain JSON or YAML instead.",
    "Y120": "Everything after a blank and `#` is a comment; quote the value if that text belongs to it.",
    "Y121": "A text holds half a surrogate pair and cannot be written as UTF-8.",
    # schema
    "S201": "The value has another type than the setting needs.",
    "S202": "The value is not one of those the setting allows.",
    "S203": "A setting that must be given is missing.",
    "S204": "There is no setting of this name here.",
    "S205": "The number is below or above what the setting allows.",
    "S206": "The text or list is too short, too long or not of the required form.",
    "S207": "A duration is a number with a unit, such as 250ms, 10s, 2m or 1h, above zero and at most 24h.",
    "S208": "The regular expression cannot be compiled.",
    "S209": "The file is written for a version of the policy format that this engine does not read.",
    "S210": "The file is of another kind than is needed here.",
    "S213": "There is no mode `off` (a boolean for other YAML readers); a rule that must not run is `disabled`.",
    "S214": "A policy may have at most 1000 rules.",
    "S215": "The settings contradict each other.",
    "S216": 'A day is written as year, month and day, in quotes, such as "2026-12-31".',
    "S217": "A mask is a JSON pointer to content of a line of the decision log.",
    # layers
    "M301": "There is no shipped policy of this name.",
    "M302": "A file named in `extends` does not exist.",
    "M303": "A file or directory lies outside the directory of the policy that is loaded.",
    "M304": "A policy extends itself, directly or through others.",
    "M305": "A bare null says neither what to set nor what to remove; write the value, or `{$delete: true}`.",
    "M306": "An overlay touches a rule that its target does not have; to add a rule, say what it uses.",
    "M307": "There is nothing to remove under this key in any lower layer.",
    "M308": "A mapping with `$` keys must be a valid layer operator.",
    "M309": "A list operator needs a list in a lower layer to work on.",
    "M310": "The overlay was written for another policy.",
    "M311": "This key has no place in a file of this kind.",
    "M312": "The entry to remove is not in the list.",
    "M313": "A policy may be made of at most 64 files.",
    "M314": "A lower layer locked the rule, and what this layer changes is not stricter.",
    "M315": "Layers that lock a rule must be a complete policy without the layers above, to be compared with.",
    "M316": "What a layer blocks stays blocked: `requires.block` of all layers adds up, and none takes anything back.",
    # extensions and packages
    "X401": "No extension of this name is built in, installed or in the extensions folder.",
    "X402": "Installed does not mean active: a package must be listed under `requires.extensions` to be used.",
    "X403": "A package listed under `requires.extensions` is not installed.",
    "X404": "The installed package is older than the policy requires.",
    "X405": "The installed package is newer than the policy allows.",
    "X406": "The extension cannot be loaded.",
    "X407": "The extension declares options that are not a valid schema.",
    "X408": "The extension's own check of its options raised an error.",
    "X409": "The version range cannot be read; it looks like `>=0.4,<1`.",
    "X410": "The extension, or the package it comes from, is blocked; a block wins over whoever uses or lists it.",
    "X411": "The package needs a newer engine than this one.",
    "X412": "The package needs an older engine than this one.",
    "X413": "The package does not say which versions of the engine it works with.",
    "X414": "The package is installed twice, in different versions; the first one on the import path is used.",
    "X415": "A proof that the extension declares does not hold.",
    "X416": "The extension is not proven: it declares no proof, or its options have no values to try it with.",
    "X417": "The state of the extension cannot be saved and read again.",
    # references and reachability
    "R501": "There is no hook point of this name.",
    "R502": "The extension does not implement this hook point, so the rule would never be called there.",
    "R503": "An order or an exception names a rule that does not exist.",
    "R504": "The rules are ordered in a circle.",
    "R505": "The selector admits nothing, so the rule can never fire.",
    "R506": "The selector has no effect, because none of the rule's hook points has a tool.",
    "R507": "The policy has no rules, so it changes nothing.",
    "R508": "An earlier pattern under `tools:` matches everything that this one matches.",
    "R509": "The prefix can never match, because results are compared without leading blanks.",
    "R510": "The options cannot work as configured, by the extension's own check.",
    "R511": "The options are likely not to work as meant, by the extension's own check.",
    "R512": "The exception has expired: it does not apply any more, and can be removed or renewed.",
    "R513": "The exception can never apply, because no event of its rule is of that kind.",
    "R514": "The kill switch is on: every rule is asked and none has an effect.",
    "R515": "A rollout of 0 percent includes no run, so the rule is never called.",
    "R516": "The mask never hides anything, because the policy does not put that content into the decision log.",
    "R517": "The rule may ask for something that the host cannot do (`--host`).",
    "R518": "The host reports nothing about what the rule looks at, so the rule can never fire there (`--host`).",
    "R519": "The extension does not declare what it answers, so nobody can tell whether a host can do it (`--host`).",
    "R520": "The rule counts together with other processes, and the host cannot be given a ledger (`--host`).",
    # lint
    "L601": "The rule is disabled by the file that adds it, and no layer enables it.",
    "L602": "Another rule of the same extension is at least as strict for the same events, so this one adds nothing.",
    "L603": "The rule in shadow records only what another rule with the same options does.",
    "L604": "No rule of the policy has an effect, because of `defaults.mode`.",
    "L605": "The rule is enforced and lets everything through when it fails.",
    "L606": "The selector names no tool of the policy, and one slip makes the name of one.",
    "L607": "The pattern has marks of another kind of pattern, which stand for themselves in this one.",
    "L608": "An earlier pattern under `models:` matches everything that this one matches.",
    "L611": "The exception ends soon.",
    "L612": "The rule of the exception has no effect anyway.",
    "L621": "The rule has been in `shadow` or `warn` for long, by the day in the `revision` of the file that says so.",
    "L622": "The rollout has stood still for long, by the day in the `revision` of the file that says its share.",
    "L631": "A run has fewer rounds than are needed to reach this.",
    "L632": "A tool is given more time than the whole run has.",
    "L633": "The tokens of a run are used up before a request is as large as compaction waits for.",
    "L641": "Forms are declared for calls in text, and `protocol` is `native`.",
    "L642": "Two forms look the same, so that nobody can tell which was meant.",
    "L643": "Arguments are to be asked for again, and they are not checked.",
    "L644": "Calls in text are to count, and the text of a response is never looked into.",
    "L645": "A plan is described, and `plan.mode` is off.",
    "L651": "The value looks like a well-known kind of secret; it belongs into the environment (`$env`).",
    "L652": "The value of a key that is called a token, a secret or a password looks random.",
    "L661": "The policy extends what another one that it extends has already.",
    "L662": "A policy between two others sets nothing.",
    "L663": "An overlay lies on the policy twice, or says the same as another one.",
    "L664": "The layers below say the same as this entry of an overlay already.",
    # environment
    "E801": "The policy needs another version of the engine.",
    "E802": "The file cannot be read.",
    "E803": "The directory of prompts does not exist.",
    "E804": "A policy or overlay file has vanished; the policy that was read from it stays in force.",
    "E805": (
        "The policy has no rules any more, as a file that is still being written may have; the last good policy stays "
        "in force. To run without rules, start anew."
    ),
    "E806": "The files of the policy kept changing while they were read; the last good policy stays in force.",
    "E807": "The policy could not be built because of an unexpected error; the last good policy stays in force.",
    "E808": "The environment variable is not set, and there is no default for it.",
    "E809": "The text of the environment variable does not fit the setting; it is never shown, since it may be secret.",
    "E810": "An environment variable is one value; mappings and lists are written in the policy.",
    "E811": (
        "Which extensions, packages and templates a policy is made of, and in which order, cannot come from the "
        "environment."
    ),
    "E812": (
        "The file is the beginning of the one in force, as one that was cut off is; the last good policy stays in "
        "force."
    ),
    "E813": "The file lacks the end mark `...` that the one in force has; the last good policy stays in force.",
    "E814": "An entry of `POLICYENGINE_BLOCK` is neither a name nor a pattern of one, so it would block nothing.",
    # tests of policies
    "T901": "The policy has no rule of this name, so a test cannot say anything about it.",
    "T902": "No turn of the test calls a tool of this name, or a turn calls one that the test does not list.",
    "T903": "An expectation says too little to be compared with a run, or two things at once.",
    "T904": "Two tests of a file have one name.",
}
"""Explanation of every code."""


def explain_code(code: str) -> str | None:
    """Return the sentence that explains a code, or `None` for an unknown one."""
    return CODES.get(code.strip().upper())
