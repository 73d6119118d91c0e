package fsck

import (
	"context"
	"errors"
	"io/fs"
	"os"

	"gloved.dev/journal/receipt"
	"gloved.dev/journal/session"
	"gloved.dev/runtime"
)

// maxRounds bounds how often Repair compares again: what one repair brings to
// light (the socket in the directory of a session that was just ended) is at most
// a few steps deep.
const maxRounds = 8

// A Report is what Repair did and what is left.
type Report struct {
	Repaired []Finding `json:"repaired"`
	Left     []Finding `json:"left"`
}

// Repair compares, repairs what it can, and compares again until nothing is left
// that it can repair. It calls tell, unless that is nil, after each repair. It may
// be cut short at any time and called again.
func Repair(ctx context.Context, c Config, tell func(Finding)) (Report, error) {
	c = c.filled()
	report := Report{Repaired: []Finding{}}
	failed := map[[2]string]string{}
	for range maxRounds {
		found, err := Check(ctx, c)
		if err != nil {
			return report, err
		}
		report.Left = []Finding{}
		r := &repairer{Config: c}
		did := 0
		for _, f := range found {
			if !f.Repairable || failed[f.key()] != "" {
				f.Failed = failed[f.key()]
				report.Left = append(report.Left, f)
				continue
			}
			if f.Done, err = f.fix(ctx, r); err != nil {
				f.Done, f.Failed = "", err.Error()
				failed[f.key()] = f.Failed
				report.Left = append(report.Left, f)
			} else {
				report.Repaired = append(report.Repaired, f)
				did++
			}
			if tell != nil {
				tell(f)
			}
		}
		if err := r.close(); err != nil {
			return report, err
		}
		if did == 0 {
			return report, nil
		}
	}
	return report, errors.New("every repair brings up another; look at what was done before going on")
}

func (f Finding) key() [2]string { return [2]string{f.Code, f.Subject} }

// A repairer has the journals and the runtime open for writing, from the first
// repair that needs them on.
type repairer struct {
	Config
	store    *session.Store
	receipts *receipt.Producer
	executor *runtime.Executor
}

// reopen opens the journals as a gloved does, which tidies up after a rotation.
func (r *repairer) reopen(ctx context.Context) (err error) {
	if r.Store != "" && r.store == nil {
		if r.store, err = session.Open(r.Store, session.Options{Clock: r.Clock}); err != nil {
			return err
		}
	}
	if r.receipts != nil {
		return nil
	}
	// A journal of receipts that is gone is not begun anew.
	if _, err := os.Lstat(r.Journal); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	p, err := receipt.New(receipt.Options{KeyPath: r.AuditKey, JournalPath: r.Journal, Clock: r.Clock})
	if err != nil {
		return err
	}
	// A page from the start opens the journal and acknowledges nothing.
	_, err = p.Page(ctx, receipt.Genesis(p.KeyID()), 1)
	if opened, _ := p.Check(); !opened {
		return errors.Join(err, p.Close())
	}
	r.receipts = p
	return nil
}

// mend takes a session to its truthful end and returns its record.
func (r *repairer) mend(ctx context.Context, id string) (session.Record, error) {
	if err := r.reopen(ctx); err != nil {
		return session.Record{}, err
	}
	if r.receipts == nil {
		return session.Record{}, errors.New("there is no receipt journal that proves: whether the session has its receipt cannot be told")
	}
	if r.executor == nil {
		e, err := runtime.New(runtime.Config{Root: r.Root, Store: r.store, Receipts: r.receipts, UIDRange: r.UIDRange, Clock: r.Clock, Log: r.Log})
		if err != nil {
			return session.Record{}, err
		}
		r.executor = e
	}
	if err := r.executor.Mend(ctx, id); err != nil {
		return session.Record{}, err
	}
	return r.store.Get(id)
}

func (r *repairer) close() error {
	var err error
	if r.executor != nil {
		err = r.executor.Close()
	}
	if r.receipts != nil {
		err = errors.Join(err, r.receipts.Close())
	}
	if r.store != nil {
		err = errors.Join(err, r.store.Close())
	}
	return err
}
