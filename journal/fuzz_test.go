package journal

import (
	"bytes"
	"os"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/gowebpki/jcs"
)

func corpus(t testing.TB) [][]byte {
	t.Helper()
	golden, err := os.ReadFile("testdata/golden.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	if v := Verify(bytes.NewReader(golden), VerifyOptions{}); v.Status != StatusClean || v.Records < 4 {
		t.Fatalf("the golden log is not clean: %+v", v)
	}
	return [][]byte{
		golden, golden[:len(golden)-1], golden[:len(golden)/2], append([]byte("\n"), golden...),
		bytes.ReplaceAll(golden, []byte(`,"hash"`), []byte(` , "hash"`)),
		[]byte("{}\n"), []byte(`{"alg":"sha256/jcs","hash":"","prev":null,"seq":1,"ts":""}` + "\n"), nil,
	}
}

// TestCorpus keeps the seeds of FuzzRecovery in the ordinary tests.
func TestCorpus(t *testing.T) {
	for _, data := range corpus(t) {
		recoverProperties(t, data)
	}
}

func FuzzRecovery(f *testing.F) {
	for _, data := range corpus(f) {
		f.Add(data)
	}
	f.Fuzz(recoverProperties)
}

// recoverProperties: reading in pieces changes no verdict; the good part of any
// log, re-encoded canonically, is clean with the same head; a cut never turns a
// clean log into a corrupt one; and the quick proof accepts nothing that the
// slow one refuses.
func recoverProperties(t *testing.T, data []byte) {
	var canonical bytes.Buffer
	slow := newWalker(nil)
	verdict := Verify(bytes.NewReader(data), VerifyOptions{Observe: func(e Entry) *Anomaly {
		canonical.Write(e.Canonical())
		canonical.WriteByte('\n')
		if again, reason, err := slow.slow(e.Line); reason != "" || again.Hash != e.Hash || again.Seq != e.Seq || !again.TS.Equal(e.TS) {
			t.Fatalf("quick and slow differ: %v %v on %s", reason, err, e.Line)
		}
		if jcsed, err := jcs.Transform(e.Canonical()); err != nil || !bytes.Equal(jcsed, e.Canonical()) {
			t.Fatalf("not canonical: %s", e.Canonical())
		}
		if a, err := Archived(e); a != nil && (err != nil || !a.wellFormed() || strings.Contains(a.Name, "/")) {
			t.Fatalf("archive %+v of %s", a, e.Line)
		}
		if body := e.Body(); !bytes.HasPrefix(body, []byte("{")) {
			t.Fatalf("body %s", body)
		} else if again, err := jcs.Transform(body); err != nil || !bytes.Equal(again, body) {
			t.Fatalf("body is not canonical: %s", body)
		}
		return nil
	}})
	chunked := Verify(iotest.HalfReader(bytes.NewReader(data)), VerifyOptions{})
	if chunked.Status != verdict.Status || chunked.Records != verdict.Records || chunked.Offset != verdict.Offset {
		t.Fatalf("whole %+v, in pieces %+v", verdict, chunked)
	}
	good := Verify(&canonical, VerifyOptions{})
	if good.Status != StatusClean || good.Records != verdict.Records {
		t.Fatalf("%+v, its good part again %+v", verdict, good)
	}
	if verdict.Head != nil && (good.Head == nil || *good.Head != *verdict.Head) {
		t.Fatalf("head %+v, its good part again %+v", verdict.Head, good.Head)
	}
	if verdict.Status == StatusClean && len(data) > 0 {
		for _, n := range []int{len(data) - 1, len(data) / 2, 1} {
			if v := Verify(bytes.NewReader(data[:n]), VerifyOptions{}); v.Status == StatusCorrupt {
				t.Fatalf("cut at %d: %+v", n, v)
			}
		}
	}
}
