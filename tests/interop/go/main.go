// The Go client of Apache RocketMQ at work on a cluster.
//
//	goclient VERB -n NAMESRV -topic TOPIC -group GROUP [-count N] [-broker ADDRESS] [-trace-topic TOPIC]
//
// A verb is one scenario. It prints one JSON object with what the client saw, and exits with 1 if the client reported
// an error. The client's own log goes to the file named by ROCKETMQ_GO_LOG_PATH, or nowhere.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"sort"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

type setting struct {
	namesrv    string
	topic      string
	group      string
	broker     string
	traceTopic string
	count      int
	wait       time.Duration
}

type seen map[string]interface{}

var verbs = map[string]func(setting) (seen, error){
	"admin":       manageTopics,
	"send":        send,
	"push":        push,
	"order":       order,
	"delay":       delay,
	"timer":       timer,
	"transaction": transaction,
	"pull":        pull,
	"trace":       trace,
	"request":     request,
}

func main() {
	if len(os.Args) < 2 || verbs[os.Args[1]] == nil {
		names := []string{}
		for name := range verbs {
			names = append(names, name)
		}
		sort.Strings(names)
		fmt.Fprintln(os.Stderr, "say what to do:", names)
		os.Exit(2)
	}
	var s setting
	flags := flag.NewFlagSet(os.Args[1], flag.ExitOnError)
	flags.StringVar(&s.namesrv, "n", "127.0.0.1:9876", "name server")
	flags.StringVar(&s.topic, "topic", "GoTopic", "topic")
	flags.StringVar(&s.group, "group", "go_group", "group of producers and consumers")
	flags.StringVar(&s.broker, "broker", "", "address of a broker (admin)")
	flags.StringVar(&s.traceTopic, "trace-topic", "RMQ_SYS_TRACE_TOPIC", "where traces go")
	flags.IntVar(&s.count, "count", 32, "messages")
	flags.DurationVar(&s.wait, "wait", 30*time.Second, "longest wait for messages")
	_ = flags.Parse(os.Args[2:])
	if path := os.Getenv("ROCKETMQ_GO_LOG_PATH"); path != "" {
		_ = rlog.SetOutputPath(path)
	} else {
		rlog.SetLogLevel("fatal")
	}
	found, err := verbs[os.Args[1]](s)
	if found == nil {
		found = seen{}
	}
	if err != nil {
		found["error"] = err.Error()
	}
	text, _ := json.Marshal(found)
	fmt.Println(string(text))
	if err != nil {
		os.Exit(1)
	}
}

func (s setting) resolver() primitive.NsResolver {
	return primitive.NewPassthroughResolver([]string{s.namesrv})
}

func (s setting) producer(more ...producer.Option) (rocketmq.Producer, error) {
	options := append([]producer.Option{
		producer.WithNsResolver(s.resolver()),
		producer.WithGroupName(s.group + "_p"),
		producer.WithRetry(2),
	}, more...)
	p, err := rocketmq.NewProducer(options...)
	if err != nil {
		return nil, err
	}
	return p, p.Start()
}

// sendAll sends count messages with body prefix+number, each made by edit.
func (s setting) sendAll(p rocketmq.Producer, prefix string, edit func(int, *primitive.Message)) error {
	for i := 0; i < s.count; i++ {
		message := primitive.NewMessage(s.topic, []byte(fmt.Sprintf("%s%d", prefix, i)))
		if edit != nil {
			edit(i, message)
		}
		result, err := p.SendSync(context.Background(), message)
		if err != nil {
			return fmt.Errorf("send %d: %w", i, err)
		}
		if result.Status != primitive.SendOK {
			return fmt.Errorf("send %d: status %d", i, result.Status)
		}
	}
	return nil
}

// arrivals collects messages by body until there are as many bodies as wanted.
type arrivals struct {
	mutex  sync.Mutex
	order  []string
	times  map[string]int
	at     map[string]time.Time
	wanted int
	full   chan struct{}
	closed bool
}

func waitingFor(wanted int) *arrivals {
	return &arrivals{times: map[string]int{}, at: map[string]time.Time{}, wanted: wanted, full: make(chan struct{})}
}

// add returns how many times the body has come, this one included.
func (a *arrivals) add(body string) int {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	a.times[body]++
	if a.times[body] == 1 {
		a.order = append(a.order, body)
		a.at[body] = time.Now()
	}
	if len(a.times) >= a.wanted && !a.closed {
		a.closed = true
		close(a.full)
	}
	return a.times[body]
}

func (a *arrivals) wait(limit time.Duration) bool {
	select {
	case <-a.full:
		return true
	case <-time.After(limit):
		return false
	}
}

func (a *arrivals) bodies() []string {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	return append([]string{}, a.order...)
}

func (s setting) consumer(
	topic string, group string, tags string,
	handle func(*primitive.MessageExt) consumer.ConsumeResult, more ...consumer.Option,
) (rocketmq.PushConsumer, error) {
	options := append([]consumer.Option{
		consumer.WithNsResolver(s.resolver()),
		consumer.WithGroupName(group),
		consumer.WithInstance(group),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
	}, more...)
	c, err := rocketmq.NewPushConsumer(options...)
	if err != nil {
		return nil, err
	}
	each := func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		for _, message := range messages {
			if result := handle(message); result != consumer.ConsumeSuccess {
				return result, nil
			}
		}
		return consumer.ConsumeSuccess, nil
	}
	selector := consumer.MessageSelector{Type: consumer.TAG, Expression: tags}
	if err := c.Subscribe(topic, selector, each); err != nil {
		return nil, err
	}
	return c, c.Start()
}
