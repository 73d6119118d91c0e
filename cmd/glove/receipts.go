package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"gloved.dev/cmd/internal/ui"
	"gloved.dev/internal/strictjson"
	"gloved.dev/journal/receipt"
	"gloved.dev/rpc/wire"
)

func (a *app) receiptsCommand() *cobra.Command {
	command := &cobra.Command{
		Use:   "receipts",
		Short: "Page a gloved's receipts, and acknowledge them",
		Long: `Every session ends in a receipt, and the receipts of a gloved are one chain. Its controller
keeps a copy: it pages what is new and acknowledges it. A gloved that has been started waits
for that before it writes another receipt, so that none can be lost between the two; until
then it starts no session and puts no end on record.

A controller such as Sage does this by itself. Where there is none, you are the controller.`,
		Example: `  glove receipts list
  glove receipts acknowledge`,
	}
	command.AddCommand(a.receiptsList(), a.receiptsAcknowledge())
	return command
}

func (a *app) receiptsList() *cobra.Command {
	var f connectFlags
	var asJSON bool
	var after int64
	command := &cobra.Command{
		Use:   "list",
		Short: "List the receipts of a gloved, the oldest first",
		Long: `List the receipts of a gloved, the oldest first. That each follows the one before is checked;
what proves who wrote them is the audit key: glove journal verify --key.`,
		Example: `  glove receipts list
  glove receipts list --after 120
  glove receipts list --json | jq -r '.session_id'`,
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			c, err := a.sessionDial(command.Context(), f, nil)
			if err != nil {
				return err
			}
			table := &ui.Table{Head: []string{"NUMBER", "SESSION", "END", "FINISHED", "DIGEST"}}
			_, err = pageReceipts(command.Context(), c, func(raw []byte, e *receipt.Envelope) error {
				if int64(e.Sequence) <= after { //nolint:gosec // no chain is so long
					return nil
				}
				if asJSON {
					_, err := a.Out.Write(append(raw, '\n'))
					return err
				}
				table.Row(fmt.Sprint(e.Sequence), e.SessionID, causeOf(e), finishedAt(e), e.ReceiptDigest[:min(12, len(e.ReceiptDigest))])
				return nil
			})
			if err = errors.Join(err, c.close()); err != nil || asJSON {
				return err
			}
			table.Write(a.Out, "", a.OutColor)
			return nil
		},
	}
	f.addTo(command.Flags())
	command.Flags().BoolVar(&asJSON, "json", false, "print one envelope a line, as it was paged")
	command.Flags().Int64Var(&after, "after", 0, "only those after this `number`")
	return command
}

func (a *app) receiptsAcknowledge() *cobra.Command {
	var f connectFlags
	var asJSON bool
	command := &cobra.Command{
		Use:   "acknowledge",
		Short: "Page all receipts and acknowledge the last, as the controller",
		Long: `Page all receipts, check that each follows the one before, and acknowledge the last: the
controller's word that it has them. A gloved that has been started waits for it before it
starts a session or puts the end of one on record. Where a controller such as Sage is in use
it does so itself. Doing it again changes nothing.

Exit status: 0 when they are acknowledged, 1 when the chain is broken or gloved refuses.`,
		Example: `  glove receipts acknowledge
  glove receipts acknowledge --runtime-dir /run/gloved`,
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			c, err := a.sessionDial(command.Context(), f, nil)
			if err != nil {
				return err
			}
			head, err := acknowledge(command.Context(), c)
			if err = errors.Join(err, c.close()); err != nil {
				return err
			}
			if asJSON {
				return a.JSON(head)
			}
			a.Outf("acknowledged receipts: %d, head %s; sessions can start\n", head.Sequence, head.HeadHMAC[:12])
			return nil
		},
	}
	f.addTo(command.Flags())
	command.Flags().BoolVar(&asJSON, "json", false, "print the acknowledged anchor as one JSON document")
	return command
}

func causeOf(e *receipt.Envelope) string {
	if e.Resource == nil {
		return e.Kind
	}
	return e.Resource.TerminationCause
}

func finishedAt(e *receipt.Envelope) string {
	if e.Resource == nil {
		return ""
	}
	return time.UnixMilli(int64(e.Resource.FinishedAtMS)).Format(time.DateTime) //nolint:gosec // a time
}

// acknowledge pages all receipts and acknowledges the last.
func acknowledge(ctx context.Context, c *connection) (wire.Anchor, error) {
	head, err := pageReceipts(ctx, c, func([]byte, *receipt.Envelope) error { return nil })
	if err == nil {
		if _, err = c.client.AcknowledgeReceipts(ctx, "ack-"+randomHex(8), head); err != nil {
			err = protocolFailure(err)
		}
	}
	return head, err
}

// pageReceipts calls f for every receipt of a gloved and returns the head of the chain,
// whose links are those of what was paged.
func pageReceipts(ctx context.Context, c *connection, f func(raw []byte, e *receipt.Envelope) error) (wire.Anchor, error) {
	hello := c.client.Hello()
	if hello == nil || hello.Capabilities.ReceiptAudit == nil {
		return wire.Anchor{}, ui.Fail("no_receipts", c.what+" keeps no receipts", "give it --audit-key and --journal")
	}
	keyID := hello.Capabilities.ReceiptAudit.KeyID
	genesis := receipt.Genesis(keyID)
	anchor := wire.Anchor{KeyID: genesis.KeyID, HeadHMAC: genesis.HeadHMAC}
	for {
		page, err := c.client.PageReceipts(ctx, anchor, wire.MaxPageLimit)
		if err != nil {
			return anchor, protocolFailure(err)
		}
		for _, raw := range page.Envelopes {
			var e receipt.Envelope
			if err := strictjson.Decode(raw, &e, strictjson.Limits{}); err != nil {
				return anchor, ui.Failf("receipt_unreadable", "after receipt %d: %w", anchor.Sequence, err)
			}
			if e.KeyID != keyID || e.Sequence != uint64(anchor.Sequence)+1 || e.PreviousHMAC != anchor.HeadHMAC { //nolint:gosec // never negative
				return anchor, ui.Fail("chain_broken", fmt.Sprintf("what came after receipt %d does not follow it", anchor.Sequence),
					"glove journal verify --key tells whether the journal itself is whole; acknowledge nothing before that is clear")
			}
			if err := f(json.RawMessage(raw), &e); err != nil {
				return anchor, err
			}
			anchor = wire.Anchor{KeyID: keyID, Sequence: anchor.Sequence + 1, HeadHMAC: e.ThisHMAC}
		}
		switch {
		case page.HasMore && len(page.Envelopes) > 0:
		case page.LocalAnchor != anchor:
			return anchor, ui.Fail("chain_broken", fmt.Sprintf("gloved's last receipt is %d, and paging ends at %d", page.LocalAnchor.Sequence, anchor.Sequence),
				"sessions may be ending now: try again; if it stays so, glove journal verify --key")
		default:
			return anchor, nil
		}
	}
}
