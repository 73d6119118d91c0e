package journal_test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/gowebpki/jcs"

	"gloved.dev/journal"
)

// seal gives a record the hash of its canonical form, in any spelling of it.
func seal(t testing.TB, record string) string {
	t.Helper()
	canonical, err := jcs.Transform([]byte(record))
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(canonical)
	return record[:len(record)-1] + `,"hash":"` + hex.EncodeToString(sum[:]) + `"}`
}

func hashOf(t testing.TB, line string) string {
	t.Helper()
	var r struct{ Hash string }
	if err := json.Unmarshal([]byte(line), &r); err != nil {
		t.Fatal(err)
	}
	return r.Hash
}

// The verdicts, reasons, positions and exit codes of the public verifier.
func TestVerdicts(t *testing.T) {
	const ts = `"ts":"2026-01-02T03:04:05.678Z"`
	first := seal(t, `{"alg":"sha256/jcs","n":1,"prev":null,"seq":1,`+ts+`}`)
	h := hashOf(t, first)
	second := seal(t, `{"alg":"sha256/jcs","n":2,"prev":"`+h+`","seq":2,`+ts+`}`)
	sealed := func(s string) string { return seal(t, strings.NewReplacer("$P", h, "$T", ts).Replace(s)) }
	spaced := sealed(`{ "seq":2.0, "x":"\u0041", "n":1.00E2, $T , "prev":"$P","alg":"sha256/jcs"}`)
	three := func(l string) string { return first + "\n" + second + "\n" + l }
	for name, row := range map[string]struct {
		log     string
		status  journal.Status
		reason  journal.Reason
		seq     uint64 // first bad
		line    uint64
		records uint64
		exit    int
	}{
		"empty":           {"", journal.StatusClean, "", 0, 0, 0, 0},
		"two":             {first + "\n" + second + "\n", journal.StatusClean, "", 0, 0, 2, 0},
		"other spelling":  {first + "\n" + spaced + "\n", journal.StatusClean, "", 0, 0, 2, 0},
		"CRLF":            {first + "\r\n" + second + "\r\n", journal.StatusClean, "", 0, 0, 2, 0},
		"torn":            {first + "\n" + second[:40], journal.StatusTorn, "", 0, 0, 1, 3},
		"whole, no LF":    {first + "\n" + second, journal.StatusTorn, "", 0, 0, 1, 3},
		"zero tail":       {first + "\n" + strings.Repeat("\x00", 4096), journal.StatusTorn, "", 0, 0, 1, 3},
		"corrupt + torn":  {first + "\nx\n" + second[:9], journal.StatusCorrupt, journal.ReasonMalformed, 0, 2, 1, 1},
		"blank at end":    {first + "\n\n", journal.StatusCorrupt, journal.ReasonMalformed, 0, 2, 1, 1},
		"BOM":             {"\ufeff" + first + "\n", journal.StatusCorrupt, journal.ReasonMalformed, 0, 1, 0, 1},
		"array":           {"[]\n", journal.StatusCorrupt, journal.ReasonMalformed, 0, 1, 0, 1},
		"null":            {"null\n", journal.StatusCorrupt, journal.ReasonMalformed, 0, 1, 0, 1},
		"duplicate name":  {strings.Replace(first, `"n":1`, `"n":1,"n":1`, 1) + "\n", journal.StatusCorrupt, journal.ReasonMalformed, 0, 1, 0, 1},
		"invalid UTF-8":   {strings.Replace(first, `"n":1`, "\"n\":\"\xff\"", 1) + "\n", journal.StatusCorrupt, journal.ReasonMalformed, 0, 1, 0, 1},
		"too long":        {`{"x":"` + strings.Repeat("y", journal.MaxRecord) + "\"}\n", journal.StatusCorrupt, journal.ReasonMalformed, 0, 1, 0, 1},
		"too long, torn":  {`{"x":"` + strings.Repeat("y", 3*journal.MaxRecord), journal.StatusTorn, "", 0, 0, 0, 3},
		"1 MiB of [":      {strings.Repeat("[", 1<<20) + "\n", journal.StatusCorrupt, journal.ReasonMalformed, 0, 1, 0, 1},
		"alg first":       {three(`{"alg":"sha512/jcs","seq":3}` + "\n"), journal.StatusCorrupt, journal.ReasonBadAlg, 3, 3, 2, 1},
		"no alg":          {`{"seq":1}` + "\n", journal.StatusCorrupt, journal.ReasonBadAlg, 1, 1, 0, 1},
		"seq 8.5":         {sealed(`{"alg":"sha256/jcs","prev":null,"seq":8.5,$T}`) + "\n", journal.StatusCorrupt, journal.ReasonSchema, 0, 1, 0, 1},
		"no prev":         {sealed(`{"alg":"sha256/jcs","seq":1,$T}`) + "\n", journal.StatusCorrupt, journal.ReasonSchema, 1, 1, 0, 1},
		"bad ts":          {sealed(`{"alg":"sha256/jcs","prev":null,"seq":1,"ts":"2026-02-30T00:00:00Z"}`) + "\n", journal.StatusCorrupt, journal.ReasonSchema, 1, 1, 0, 1},
		"body changed":    {strings.Replace(first, `"n":1`, `"n":2`, 1) + "\n", journal.StatusCorrupt, journal.ReasonHash, 1, 1, 0, 1},
		"1e400":           {strings.Replace(first, `"n":1`, `"n":1e400`, 1) + "\n", journal.StatusCorrupt, journal.ReasonHash, 1, 1, 0, 1},
		"twice":           {first + "\n" + first + "\n", journal.StatusCorrupt, journal.ReasonDuplicate, 1, 2, 1, 1},
		"gap":             {first + "\n" + sealed(`{"alg":"sha256/jcs","prev":"$P","seq":3,$T}`) + "\n", journal.StatusCorrupt, journal.ReasonGap, 3, 2, 1, 1},
		"begins at 2":     {second + "\n", journal.StatusCorrupt, journal.ReasonGap, 2, 1, 0, 1},
		"not genesis":     {sealed(`{"alg":"sha256/jcs","prev":"$P","seq":1,$T}`) + "\n", journal.StatusCorrupt, journal.ReasonNotGenesis, 1, 1, 0, 1},
		"null later":      {first + "\n" + sealed(`{"alg":"sha256/jcs","prev":null,"seq":2,$T}`) + "\n", journal.StatusCorrupt, journal.ReasonPrev, 2, 2, 1, 1},
		"zero hash first": {sealed(`{"alg":"sha256/jcs","prev":"`+strings.Repeat("0", 64)+`","seq":1,$T}`) + "\n", journal.StatusCorrupt, journal.ReasonNotGenesis, 1, 1, 0, 1},
	} {
		v := journal.Verify(strings.NewReader(row.log), journal.VerifyOptions{})
		var seq uint64
		if v.FirstBadSeq != nil {
			seq = *v.FirstBadSeq
		}
		if v.Status != row.status || v.Reason != row.reason || seq != row.seq || v.Line != row.line ||
			v.Records != row.records || v.ExitCode() != row.exit {
			t.Errorf("%s: %+v (bad seq %d)", name, v, seq)
		}
	}
}

func TestTimestamps(t *testing.T) {
	line := func(ts string) string {
		return seal(t, `{"alg":"sha256/jcs","prev":null,"seq":1,"ts":`+ts+`}`) + "\n"
	}
	for ts, ok := range map[string]bool{
		`"2026-08-20T19:17:15.812Z"`: true, `"2026-08-20t19:17:15z"`: true, `"2026-08-20 19:17:15+02:00"`: true,
		`"2026-08-20T19:17:15+0200"`: true, `"2026-08-20T19:17:15.123456789012Z"`: true, `"2016-12-31T23:59:60Z"`: true,
		`"2026-08-20T19:17:15"`: false, `"2026-08-20T19:17:15.Z"`: false, `"2026-08-20T24:00:00Z"`: false,
		`"2016-12-31T22:59:60Z"`: false, `"2026-02-29T00:00:00Z"`: false, `"2026-08-20"`: false, `1`: false, `null`: false,
		`"2026-08-20T19:17:15,5Z"`: false, `"2026-8-20T19:17:15Z"`: false, `"2026-08-20T1:17:15.5Z"`: false,
		`"2026-08-20T19:17:15+24:00"`: false, `"2026-08-20T19:17:15-23:59"`: true, `"2026-08-20T19:17:15+02:60"`: false,
	} {
		v := journal.Verify(strings.NewReader(line(ts)), journal.VerifyOptions{})
		if (v.Status == journal.StatusClean) != ok {
			t.Errorf("%s: %+v", ts, v)
		}
	}
}

func TestVerifyHooks(t *testing.T) {
	path := filepath.Join(dir(t), "log.jsonl")
	j := open(t, path, journal.Options{})
	appendN(t, j, 3)
	head := j.Head()
	o := journal.VerifyOptions{
		Schema: func(e journal.Entry) string {
			if e.Seq == 2 {
				return "no twos"
			}
			return ""
		},
	}
	if v, _ := journal.VerifyFile(path, o); v.Reason != journal.ReasonSchema || *v.FirstBadSeq != 2 {
		t.Errorf("%+v", v)
	}
	v, _ := journal.VerifyFile(path, journal.VerifyOptions{Anchor: &head, Observe: func(e journal.Entry) *journal.Anomaly {
		if e.Seq == 3 {
			return &journal.Anomaly{Kind: "odd", Seq: 3}
		}
		return nil
	}})
	if v.Status != journal.StatusClean || len(v.Anomalies) != 1 || v.ExitCode() != 0 {
		t.Errorf("%+v", v)
	}
	past := journal.Head{Seq: 4, Hash: head.Hash}
	if v, _ := journal.VerifyFile(path, journal.VerifyOptions{Anchor: &past}); v.Status != journal.StatusCorrupt || v.Reason != journal.ReasonHeadMismatch {
		t.Errorf("%+v", v)
	}
}

func TestVerifyFile(t *testing.T) {
	d := dir(t)
	absent := filepath.Join(d, "absent")
	v, err := journal.VerifyFile(absent, journal.VerifyOptions{})
	if err != nil || v.Status != journal.StatusClean || v.Head != nil {
		t.Errorf("absent: %+v %v", v, err)
	}
	if _, err := os.Stat(absent); err == nil {
		t.Error("verify created the file")
	}
	if raw, _ := json.Marshal(v); string(raw) != `{"anomalies":[],"head":null,"records":0,"status":"clean"}` {
		t.Errorf("%s", raw)
	}
	fifo := filepath.Join(d, "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{d, fifo} {
		if v, err := journal.VerifyFile(path, journal.VerifyOptions{}); err == nil || v.ExitCode() != journal.ExitUnreadable {
			t.Errorf("%s: %+v %v", path, v, err)
		}
	}
}
