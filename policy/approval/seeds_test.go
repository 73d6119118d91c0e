package approval

import "testing"

// TestFuzzSeeds: the seeds hold policies that are accepted and ones that are refused for
// different reasons, so that fuzzing starts on both sides of every border.
func TestFuzzSeeds(t *testing.T) {
	codes := map[string]bool{}
	for _, seed := range fuzzSeeds {
		codes[codeOf(Parse([]byte(seed)))] = true
	}
	for _, code := range []string{"", CodeNoBlock, CodeYAML, CodeSchema} {
		if !codes[code] {
			t.Errorf("no seed gives %q", code)
		}
	}
}
