# Short names for commands; each is one line one could type. Nothing needs just.

# List the recipes.
default:
    @just --list

# Run every test that this machine can run.
test *ARGS:
    go test ./... {{ARGS}}

# Run the linters, at the versions that continuous integration uses.
lint *ARGS:
    .ci/lint {{ARGS}}

# Fuzz every target for TIME each.
fuzz TIME="20s":
    .ci/fuzz {{TIME}}

# Run fifty sessions at once under a gloved that is killed and restarted at random, for TIME.
soak TIME="10m":
    GLOVE_TEST_SOAK={{TIME}} go test -v -count 1 -timeout 24h -run '^TestSoak$' ./integration/session

# Compare with bwrap, runc and bare loops on this machine.
bench *ARGS:
    go test -run '^$' -bench . -benchtime 1x -timeout 30m ./integration/bench {{ARGS}}

# Check the golden transcripts against a fresh build.
transcripts *ARGS:
    go run ./cmd/glove transcript check {{ARGS}} testdata/transcripts

# Run the runtime's tests in a throw-away VM on pure cgroup v2.
vm *ARGS:
    go test -v -count 1 -timeout 60m -run '^TestVM$' ./integration/vm {{ARGS}}

# Do what continuous integration does (installs Debian packages; wants root).
ci:
    .ci/run
