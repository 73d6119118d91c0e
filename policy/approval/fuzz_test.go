package approval

import (
	"strings"
	"testing"
)

var fuzzSeeds = []string{
	file(`version: "0.1"`), file(full), "````\n" + file(full) + "````\n", "```yaml approval-policy\n",
	file("version: \"0.1\"\n---\nx"), file("a: &x [*x]"), file("? [a]\n: b"), "~~~\n" + file(full) + "~~~\r",
	file("version: ! x"), file("agents: {}"), file("%TAG ! x\n---\na: b"), file("a: |\n  b\n c"), file("version: \"0.1\"\nclasses: {a.*: {autonomy: autonomous}}"),
}

// FuzzBlocks: a policy block is found in what an independent line-by-line reading also takes
// for one, and line ends make no difference.
func FuzzBlocks(f *testing.F) {
	for _, seed := range fuzzSeeds {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		found, open := blocks(text)
		normal := strings.ReplaceAll(strings.ReplaceAll(text, "\r\n", "\n"), "\r", "\n")
		again, openAgain := blocks(normal)
		if open != openAgain || len(found) != len(again) {
			t.Fatalf("line ends change %d blocks (open %v) to %d (open %v)", len(found), open, len(again), openAgain)
		}
		for i, b := range found {
			if b != again[i] {
				t.Fatalf("line ends change block %d: %+v, %+v", i, b, again[i])
			}
			if !strings.Contains(normal, b.text) {
				t.Fatalf("block %d is not in the text: %q", i, b.text)
			}
		}
		if len(found) > 0 && !strings.Contains(normal, "```") {
			t.Fatal("a block without a fence")
		}
	})
}

// FuzzParse: whatever is no valid policy decides Manual, and whatever is one decides by its
// own rules, the same each time; nothing ends the program.
func FuzzParse(f *testing.F) {
	for _, seed := range fuzzSeeds {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		d := Parse(data)
		if (d.Policy == nil) != (d.Failure != nil) {
			t.Fatalf("policy %v with failure %v", d.Policy, d.Failure)
		}
		no := false
		for _, class := range []string{"a", "a.b", "policy.edit", "policy.edit.x", ClassWorkspace} {
			r := d.Resolve(class, nil)
			if d.Policy == nil && r.Autonomy != Manual {
				t.Fatalf("without a policy %s is %s", class, r.Autonomy)
			}
			if strictness[r.Autonomy] == 0 {
				t.Fatalf("%s is %q, which is no autonomy", class, r.Autonomy)
			}
			if floor := d.Resolve(class, &no); r.Autonomy.StricterThan(floor.Autonomy) {
				t.Fatalf("%s is laxer when it cannot be taken back: %s, %s", class, r.Autonomy, floor.Autonomy)
			}
		}
		if got := d.ClassOf("x/AGENTS.md"); !strings.HasPrefix(got.Class, ClassPolicyEdit) {
			t.Fatalf("AGENTS.md is %s", got.Class)
		}
	})
}
