package gate

import (
	"context"
	"fmt"
	"testing"
)

// TestSealedDeliveryIsNotPrinted: a policy that wants tokens sealed gets none in the clear; a
// broker's grant, which has no token, is not concerned.
func TestSealedDeliveryIsNotPrinted(t *testing.T) {
	s := newSite(t, manual)
	plain := s.declare("before", "a.b")
	s.must(s.ask(plain, ""))
	if token, err := s.grant(plain); err != nil || token == "" {
		t.Fatalf("without the setting: %q %v", token, err)
	}
	s = newSite(t, "defaults: {autonomy: manual, token_delivery: sealed}")
	plain, brokered := s.declare("one", "a.b"), s.declare("two", "a.b")
	s.must(s.ask(plain, ""))
	s.must(s.ask(brokered, ExecBroker))
	token, err := s.grant(plain)
	s.refuses(err, CodeDeliveryUnsupported)
	if token != "" {
		t.Fatal("a token came with the refusal")
	}
	if token, err := s.grant(brokered); err != nil || token != "" {
		t.Fatalf("%q %v", token, err)
	}
	s.must(s.start(brokered, "", ExecBroker))
}

// TestBrokerQuestionsAreBounded: however many changes an agent thinks up, only so many wait for a
// person, and the ones of another actor are not among them.
func TestBrokerQuestionsAreBounded(t *testing.T) {
	s := newSite(t, manual)
	for i := range MaxBrokerQuestions {
		s.must(s.ask(s.declare(fmt.Sprint("t", i), "a.b"), ExecBroker))
	}
	more := s.declare("more", "a.b")
	s.refuses(s.ask(more, ExecBroker), CodeQueueFull)
	if _, err := s.Request(context.Background(), Question{Actor: "agent:other", Key: more, Payload: payload, Execution: ExecBroker}); err != nil {
		t.Fatalf("another broker: %v", err)
	}
	if _, err := s.Reject(context.Background(), Decision{Actor: ada, Key: "t0:a.b"}); err != nil {
		t.Fatal(err)
	}
	s.must(s.ask(s.declare("again", "a.b"), ExecBroker)) // a decision makes room
}
