package transcript

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// FuzzParse: what parses is written back to bytes that parse to the same entries.
func FuzzParse(f *testing.F) {
	golden, err := filepath.Glob("../../testdata/transcripts/*.transcript")
	if err != nil || len(golden) == 0 {
		f.Fatalf("no golden transcripts to begin from: %v", err)
	}
	for _, path := range golden {
		text, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Add([]byte("$ gloved\r\n-->\r\n<-- {}\n--> <eof>\n<-- <eof>"))
	f.Fuzz(func(t *testing.T, text []byte) {
		file, err := Parse("x.transcript", text)
		if err != nil {
			return
		}
		written := file.Bytes()
		again, err := Parse("x.transcript", written)
		if err != nil {
			t.Fatalf("what was written does not parse: %v\n%q", err, written)
		}
		if !bytes.Equal(again.Bytes(), written) || len(again.Entries) != len(file.Entries) {
			t.Fatalf("written twice it differs:\n%q\n%q", written, again.Bytes())
		}
		for i, entry := range file.Entries {
			if entry != again.Entries[i] {
				t.Fatalf("entry %d is %+v, then %+v", i, entry, again.Entries[i])
			}
		}
	})
}

// FuzzMatch: a frame always matches itself, unless it holds a matcher's text.
func FuzzMatch(f *testing.F) {
	for _, seed := range []string{`{"a":[1,"x",null,true,1.50]}`, `"<any>"`, `{"a":{"b":{}}}`, `[]`, `-0`, `"\ud83d\ude00"`, `{"~/":1}`} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if bytes.ContainsAny([]byte(text), "<>") {
			return
		}
		if _, err := decode([]byte(text)); err != nil {
			return
		}
		differences, err := Match([]byte(text), []byte(text), Vars{})
		// An escaped "<" is a matcher's text too.
		if err != nil || len(differences) > 0 && !bytes.Contains([]byte(text), []byte(`\u003c`)) && !bytes.Contains([]byte(text), []byte(`\u003C`)) {
			t.Errorf("Match(%q, itself) = %v, %v", text, differences, err)
		}
	})
}
