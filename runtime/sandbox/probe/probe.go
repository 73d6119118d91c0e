// Package probe tries, from inside a session, acts that its confinement must
// refuse, and says which were.
//
// An Act is one attempt with the set of answers that count as a refusal. Any other
// answer is a breach, even another error: a call that fails with EINVAL was let
// through to code that judged its arguments. Acts are chosen and given such
// arguments that an attempt which gets through changes nothing that outlasts the
// room, and usually nothing at all.
//
// The list is fixed; its Digest goes into the receipt beside the results, so that a
// reader knows what exactly was tried. The package confines nothing itself.
package probe

// Result is the outcome of one act.
type Result struct {
	// Name is the act's stable name.
	Name string `json:"name"`
	// Answer is the errno's name, or "success".
	Answer string `json:"answer"`
	// Refused is whether the answer is one of the act's refusals.
	Refused bool `json:"refused"`
}

// Breach returns the first result that was not refused.
func Breach(results []Result) (Result, bool) {
	for _, r := range results {
		if !r.Refused {
			return r, true
		}
	}
	return Result{}, false
}
