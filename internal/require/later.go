package require

import (
	"fmt"
	"os"
)

// LaterVariable, set to "later", keeps the packages that ask Later out of one
// run of "go test ./...", by a caller that runs them as a step of its own.
const LaterVariable = "GLOVE_TEST_SLOW"

// Later reports whether the caller said that it runs this package as a step of
// its own, and prints so. TestMain asks it after the roles that the test binary
// plays, and returns when it is true. why says what makes the package slow where
// it is left out.
func Later(why string) bool {
	if os.Getenv(LaterVariable) != "later" {
		return false
	}
	fmt.Fprintf(os.Stderr, "%s=later: the caller runs this package as a step of its own: %s\n", LaterVariable, why)
	return true
}
