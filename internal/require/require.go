// Package require decides what a test does when the machine it runs on lacks something the test
// needs: a program, root, a kernel feature.
//
// Its nouns are the requirement (what is missing, said in words a reader can act on), the mode (the
// environment variable GLOVE_TEST_REQUIRE), and the kind (a closed list of things that a whole kind of
// machine can never have and that another lane of the project covers instead). Without the mode a
// missing requirement is a skip, so that a fresh clone passes its tests anywhere; with
// GLOVE_TEST_REQUIRE=all it is a failure, so that continuous integration cannot go green by quietly
// running nothing. A missing kind stays a skip in both, with the lane that covers it in its message.
//
// It is not for assertions about the code under test, and nothing but tests may import it.
package require

import (
	"os"
	"os/exec"
	"runtime"
	"testing"
)

// Variable is the environment variable that sets the mode: empty for skips, [All] for failures.
// Any other value fails every test that asks, because a misspelt mode would otherwise hide skips.
const Variable = "GLOVE_TEST_REQUIRE"

// All is the value of [Variable] under which a missing requirement fails the test.
const All = "all"

// Skip ends the test because the machine lacks something, which reason names together with how to
// get it ("mkfs.ext4 is missing; install e2fsprogs"). The test is skipped, or failed under
// GLOVE_TEST_REQUIRE=all. Skip does not return.
func Skip(t testing.TB, reason string) {
	t.Helper()
	switch mode := os.Getenv(Variable); mode {
	case "":
		t.Skipf("requires: %s", reason)
	case All:
		t.Fatalf("requires: %s (a skip is a failure under %s=%s)", reason, Variable, All)
	default:
		t.Fatalf("%s=%q is not known; use %q or leave it unset", Variable, mode, All)
	}
}

// Root returns if the test runs with effective uid 0 and otherwise ends it as [Skip] does.
func Root(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		Skip(t, "effective uid 0; run the tests as root")
	}
}

// NotRoot returns if the test runs with an effective uid other than 0. As root it ends the test
// through [Environment] with [Unprivileged]: one run of the tests has one uid, so that a run as root
// could never satisfy both NotRoot and [Root].
func NotRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() == 0 {
		Environment(t, Unprivileged)
	}
}

// Linux returns on Linux and otherwise ends the test as [Skip] does. It is for tests in files
// without a build constraint; a file that only compiles on Linux needs none of it.
func Linux(t testing.TB) {
	t.Helper()
	if runtime.GOOS != "linux" {
		Skip(t, "Linux, not "+runtime.GOOS)
	}
}

// Tool returns the absolute path of the program called name, as found along PATH and then in the
// system directories that an unprivileged PATH leaves out. If there is none it ends the test as
// [Skip] does.
func Tool(t testing.TB, name string) string {
	t.Helper()
	if path, ok := find(name); ok {
		return path
	}
	Skip(t, "the program "+name+" is not installed")
	return ""
}

// find looks name up; the second result tells whether it is there.
func find(name string) (string, bool) {
	if path, err := exec.LookPath(name); err == nil {
		return path, true
	}
	for _, dir := range []string{"/usr/local/sbin", "/usr/sbin", "/sbin"} {
		if path, err := exec.LookPath(dir + "/" + name); err == nil {
			return path, true
		}
	}
	return "", false
}
