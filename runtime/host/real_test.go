package host_test

import (
	"testing"

	"gloved.dev/runtime/host"
)

// TestThisMachine only asks that every check is made, in order, and says what to do.
func TestThisMachine(t *testing.T) {
	list := host.Checks(t.Context())
	seen := map[string]bool{}
	for _, c := range list {
		t.Logf("%-32s %-8s %s | %s", c.Code, c.Status, c.Message, c.Recovery)
		if seen[c.Code] {
			t.Errorf("%s: twice", c.Code)
		}
		seen[c.Code] = true
		if c.Message == "" {
			t.Errorf("%s: no message", c.Code)
		}
		if (c.Status == host.Passed) != (c.Recovery == "") {
			t.Errorf("%s: status %s with recovery %q", c.Code, c.Status, c.Recovery)
		}
	}
	if !seen[host.CodePlatform] {
		t.Error("the platform was not checked")
	}
	t.Logf("usable: %v", host.Usable(list))
}
