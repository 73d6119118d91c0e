package rpc

import (
	"context"
	"errors"
	"reflect"
	"time"

	"gloved.dev/internal/strictjson"
)

// DefaultTimeout bounds a method that sets no bound of its own. The longest a
// method may wait by protocol is 30 s (attach).
const DefaultTimeout = 60 * time.Second

// A Component is something that was constructed and serves methods. It may also
// implement CapabilitySource, HealthSource and NotificationSource.
type Component interface {
	Methods() []Method
}

// MethodOptions say how the server treats a method.
type MethodOptions struct {
	// Mutating methods require an idempotency key; the others refuse one.
	Mutating bool
	// Durable methods keep answers by key themselves, through a restart. The
	// server remembers the others' in memory.
	Durable bool
	// OwnerLocal methods exist only on connections of the owner.
	OwnerLocal bool
	// Notification marks what a client sends without an id and nothing answers.
	// Such methods run on the goroutine that reads and must return at once.
	Notification bool
	// Ordered requests whose parameters have the same OrderKey take effect in the
	// order they arrived at the server. *P must have a method OrderKey() string.
	Ordered bool
	// Timeout bounds one call; 0 means DefaultTimeout.
	Timeout time.Duration
	// Errors are the codes the method may answer with, for rpc.discover, besides
	// those any method may.
	Errors []Code
}

// A Method is one entry of the registry. Methods are made by NewMethod.
type Method struct {
	Name    string
	Summary string
	MethodOptions
	// Params and Result are the types that the parameters and the result have on
	// the wire; Result is nil for notifications.
	Params, Result reflect.Type

	decode func([]byte) (any, error)
	handle func(context.Context, *Call, any) (any, error)
}

type orderKeyer interface{ OrderKey() string }

// NewMethod returns a method whose parameters decode strictly into a P (unknown,
// missing, duplicate and mistyped members are answered with invalid_params
// before h is called) and whose result is an R. Wrong options panic: they are
// the programmer's mistake, found by the first test.
func NewMethod[P, R any](name, summary string, o MethodOptions, h func(context.Context, *Call, *P) (*R, error)) Method {
	m := Method{Name: name, Summary: summary, MethodOptions: o, Params: reflect.TypeFor[P](), Result: reflect.TypeFor[R]()}
	if o.Notification {
		m.Result = nil
	}
	if o.Timeout == 0 {
		m.Timeout = DefaultTimeout
	}
	if _, ok := any(new(P)).(orderKeyer); o.Ordered && !ok {
		panic("rpc: internal error: " + name + " is ordered, but its parameters have no OrderKey")
	}
	if o.Notification && (o.Mutating || o.Ordered) || o.Durable && !o.Mutating {
		panic("rpc: internal error: the options of " + name + " contradict each other")
	}
	m.decode = func(raw []byte) (any, error) {
		p := new(P)
		if err := strictjson.Decode(raw, p, strictjson.Limits{}); err != nil {
			return nil, invalidParams(err)
		}
		return p, nil
	}
	m.handle = func(ctx context.Context, c *Call, p any) (any, error) {
		r, err := h(ctx, c, p.(*P))
		if err != nil {
			return nil, err
		}
		if r == nil {
			r = new(R)
		}
		return r, nil
	}
	return m
}

// maxPointer bounds the JSON pointer an answer repeats.
const maxPointer = 256

// invalidParams says which member is wrong and how, in strictjson's terms. The
// pointer consists of the peer's own names.
func invalidParams(err error) *Error {
	e := Wrap(InvalidParams, "", err)
	var se *strictjson.Error
	if errors.As(err, &se) {
		e = e.With("reason", se.Code)
		if se.Pointer != "" && len(se.Pointer) <= maxPointer {
			e = e.With("pointer", se.Pointer)
		}
	}
	return e
}
