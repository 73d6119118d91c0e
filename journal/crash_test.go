package journal_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"gloved.dev/journal"
)

// A history is what a client knows: the records it asked for and those that were
// acknowledged, in order.
type history struct {
	asked map[string]bool
	acked []string
}

// live appends some records, small and large, reopens, and appends more.
func live(d *disk) (h history) {
	h.asked = map[string]bool{}
	n := 0
	for range 2 {
		j, err := journal.Open(memPath, journal.Options{FS: d}, nil)
		if err != nil {
			return h
		}
		for _, size := range []int{1, 3000, 10} {
			n++
			text := fmt.Sprintf("%d-%s", n, strings.Repeat("x", size))
			h.asked[text] = true
			if _, err := j.Append(context.Background(), body{text, n}); err == nil {
				h.acked = append(h.acked, text)
			}
		}
		if j.Close() != nil {
			return h
		}
	}
	return h
}

// check opens what a crash left and compares it with what the client knows.
func (h history) check(t *testing.T, d *disk, mayBeCorrupt bool) {
	t.Helper()
	var have []string
	collect := func(e journal.Entry) error {
		var b body
		if err := e.Decode(&b); err != nil {
			return err
		}
		have = append(have, b.Event)
		return nil
	}
	j, err := journal.Open(memPath, journal.Options{FS: d}, collect)
	if errors.Is(err, journal.ErrTornTail) {
		if _, err := journal.Repair(d, memPath, true); err != nil {
			t.Fatalf("repair: %v", err)
		}
		have = nil
		j, err = journal.Open(memPath, journal.Options{FS: d}, collect)
	}
	var corrupt *journal.CorruptError
	switch {
	case err == nil:
		defer j.Close()
	case errors.As(err, &corrupt) && mayBeCorrupt && corrupt.Reason != journal.ReasonRejected:
		// A device that wrote a later sector and not an earlier one can leave a
		// complete line that does not verify. It is never taken for a record, and
		// nothing acknowledged is behind it.
	default:
		t.Fatalf("open: %v", err)
	}
	if len(have) < len(h.acked) {
		t.Fatalf("%d records, %d acknowledged", len(have), len(h.acked))
	}
	seen := map[string]bool{}
	for i, text := range have {
		if !h.asked[text] || seen[text] {
			t.Fatalf("record %d is not one that was asked for, or is there twice", i)
		}
		seen[text] = true
	}
	for _, text := range h.acked {
		if !seen[text] {
			t.Fatalf("lost an acknowledged record: %.20s", text)
		}
	}
	if j != nil && err == nil {
		if _, err := j.Append(context.Background(), body{"after", 0}); err != nil {
			t.Fatalf("append after recovery: %v", err)
		}
	}
}

// The machine dies at every operation, and the device keeps of the unsynced
// bytes nothing, everything, some prefix, or some sectors.
func TestCrashEverywhere(t *testing.T) {
	whole := newDisk()
	if h := live(whole); len(h.acked) != 6 {
		t.Fatalf("without a crash %d of 6 are acknowledged", len(h.acked))
	}
	cuts := 0
	for at := 1; at <= whole.ops; at++ {
		for mode := range keepModes {
			for seed := range uint64(12) {
				d := newDisk()
				d.crash = at
				h := live(d)
				after := d.restart(mode, rand.New(rand.NewPCG(seed, uint64(at))))
				h.check(t, after, mode == keepHoles)
				cuts++
			}
		}
	}
	t.Logf("%d cuts at %d operations: %v", cuts, whole.ops, whole.kinds)
}

// The device fails once at every operation. Nothing acknowledged is lost, the
// journal refuses everything after, and a failed write leaves no torn tail.
func TestFaultEverywhere(t *testing.T) {
	whole := newDisk()
	live(whole)
	for at := 1; at <= whole.ops; at++ {
		d := newDisk()
		d.fail = at
		h := live(d)
		kind := d.kinds[at-1]
		if kind == "write" || kind == "sync" && d.syncs > 1 {
			if len(h.acked) == 6 {
				t.Errorf("%s %d failed and everything was acknowledged", kind, at)
			}
		}
		d.fail = 0
		if n := d.names[memPath]; n != nil {
			if v := journal.Verify(strings.NewReader(string(n.live)), journal.VerifyOptions{}); v.Status != journal.StatusClean {
				t.Errorf("after a failed %s (%d): %s", kind, at, v.Message)
			}
		}
		h.check(t, d.restart(keepNone, rand.New(rand.NewPCG(1, 1))), false)
		h.check(t, d.restart(keepAll, rand.New(rand.NewPCG(1, 1))), false)
	}
}

// A journal that could not write refuses everything until it is opened again,
// and a failed sync is never tried again.
func TestPoison(t *testing.T) {
	for _, kind := range []string{"write", "sync"} {
		d := newDisk()
		j, err := journal.Open(memPath, journal.Options{FS: d}, nil)
		if err != nil {
			t.Fatal(err)
		}
		appendN(t, j, 1)
		size := len(d.names[memPath].live)
		d.fail = d.ops + 1
		if kind == "sync" {
			d.fail++
		}
		before := d.syncs
		for range 2 {
			if _, err := j.Append(context.Background(), body{"x", 0}); code(err) != journal.CodePoisoned {
				t.Errorf("%s: %v", kind, err)
			}
		}
		if _, err := j.Reserve(1, 1); code(err) != journal.CodePoisoned {
			t.Errorf("%s: reserve: %v", kind, err)
		}
		if len(d.names[memPath].live) != size || !j.Stats().Poisoned {
			t.Errorf("%s: the file was not cut back", kind)
		}
		if kind == "sync" && d.syncs != before {
			t.Error("a failed sync was tried again")
		}
		j.Close()
		j = open(t, memPath, journal.Options{FS: d})
		if j.Head().Seq != 1 {
			t.Error(j.Head())
		}
		j.Close()
	}
}

// The machine dies at every operation of a repair: the torn bytes are never lost
// and the records never touched.
func TestCrashInRepair(t *testing.T) {
	const tail = `{"alg":"sha256/jcs","torn`
	prepare := func() (*disk, history) {
		d := newDisk()
		h := live(d)
		n := d.names[memPath]
		n.live = append(n.live, tail...)
		n.durable = append([]byte{}, n.live...)
		d.ops = 0
		return d, h
	}
	whole, _ := prepare()
	if _, err := journal.Repair(whole, memPath, true); err != nil {
		t.Fatal(err)
	}
	for at := 1; at <= whole.ops; at++ {
		for mode := range keepModes {
			for seed := range uint64(8) {
				d, h := prepare()
				d.crash = at
				if _, err := journal.Repair(d, memPath, true); err == nil {
					t.Fatal("the repair survived the crash")
				}
				after := d.restart(mode, rand.New(rand.NewPCG(seed, uint64(at))))
				h.check(t, after, false)
				kept := after.kept()
				if len(kept) != 1 || kept[0] != tail {
					t.Fatalf("crash at %d: kept %q", at, kept)
				}
			}
		}
	}
}
