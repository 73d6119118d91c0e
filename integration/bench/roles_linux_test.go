package bench

import (
	"fmt"
	"os"
)

// roleVariable makes a second process of this test binary play a part in a
// contest.
const roleVariable = "GLOVE_BENCH_ROLE"

const roleEcho = "echo"

func play(role string) int {
	switch role {
	case roleEcho:
		return echoMain()
	}
	fmt.Fprintln(os.Stderr, "unknown role", role)
	return 2
}

func echoMain() int { return 0 }
