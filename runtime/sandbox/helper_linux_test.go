package sandbox

import (
	"strconv"
	"testing"
)

const helperEnv = "GLOVE_SANDBOX_TEST_HELPER"

func runHelper(role string) int { return 1 }
func itoa(n int) string { return strconv.Itoa(n) }
func needRoom(t testing.TB) {}
