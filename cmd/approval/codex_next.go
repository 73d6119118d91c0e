package main

import (
	"gloved.dev/runtime/broker"
	"gloved.dev/runtime/gate"
	"gloved.dev/runtime/room"
)

// nextOfCodex says what to do about a failure of a codex command, by its code and, where that says
// more, its detail.
var nextOfCodex = map[string]string{
	broker.CodeManifestInvalid: "correct the manifest; approval codex setup FOLDER writes a template",
	broker.CodeManifestDrift:   "install the manifest at the path that its paths.manifest names, and give that path",
	"proposal-unreadable":      "give a JSON file, or - for standard input; approval codex plan --help shows its form",

	broker.CodeInputInvalid:        "approval codex plan --help shows the form of a proposal",
	broker.CodePolicyUnavailable:   "mend the policy (approval policy check says what is wrong with it), then: approval policy attest --as human:NAME",
	broker.CodePolicyNotAttested:   next[gate.CodePolicyNotAttested],
	broker.CodeAttestationDrift:    "put the SHA-256 of the attested policy file into expected_policy_sha256",
	"preimage-mismatch":            "read the file again and propose the change to what it holds now",
	"class-human-only":             "a person makes this change; approval policy explain PATH says why",
	broker.CodeReplay:              "change the proposal, if more is to be done",
	"execution-dangling":           "approval codex recover, then: approval codex settle",
	"execution-indeterminate":      next[gate.CodeExecutionIndeterminate],
	gate.CodeQueueFull:             "a person decides what waits first: approval queue",
	broker.CodeCustodyContended:    "approval codex recover says whose lock it is",
	broker.CodeCustodyInsufficient: "let nobody but the broker's user write the workspace, or leave out --require-exclusive-custody",
	broker.CodeWorkspaceDrift:      "read the files again and propose the change to what they hold now",
	broker.CodeCommitNotApplied:    "the same command again asks again",
	broker.CodeCommitUnknown:       "approval codex recover",
	gate.CodeLogTornTail:           next[gate.CodeLogTornTail],
	gate.CodeLogCorrupt:            next[gate.CodeLogCorrupt],
	string(gate.StateRejected):     "propose another change",
	string(gate.StateRevoked):      "propose another change",
	room.CodeUnsupported:           "use a system with user namespaces, mount namespaces and seccomp; there is no way to run it unconfined",
	room.CodeUnresolvable:          "name a program of /usr/bin, or give an absolute path",
	room.CodeTimeout:               "give it longer: --timeout 10m",
}

// codexNext finds what to do: the detail knows more than the code.
func codexNext(code, detail string) string {
	if hint := nextOfCodex[detail]; hint != "" {
		return hint
	}
	return nextOfCodex[code]
}
