package io.hiroma.spark;

import java.lang.reflect.Method;
import java.util.Arrays;
import java.util.SortedMap;
import java.util.function.Supplier;
import java.util.stream.Stream;
import org.apache.spark.ui.SparkUI;
import org.apache.spark.ui.SparkUITab;
import org.apache.spark.ui.UIUtils;
import org.apache.spark.ui.WebUIPage;
import scala.Function0;
import scala.xml.Node;
import scala.xml.Unparsed;

/** The tab "Hiroma" of an application's web UI: where the memory of each executor is, and was. */
final class HiromaTab extends SparkUITab {
  /** {@code trial} is null unless the policy is auto. */
  HiromaTab(SparkUI ui, Supplier<SortedMap<String, History>> histories, Trial trial) {
    super(ui, "hiroma");
    attachPage(new Page(this, histories, trial));
  }

  /**
   * Spark 3.5 asks for the method with the one request and sequence, Spark 4 for that with the other ones. The JVM looks for a class when it
   * is used, and the request of the other version never is.
   */
  private static final class Page extends WebUIPage {
    private static final String HEADER = "headerSparkPage";
    private final HiromaTab tab;
    private final Supplier<SortedMap<String, History>> histories;
    private final Trial trial;

    Page(HiromaTab tab, Supplier<SortedMap<String, History>> histories, Trial trial) {
      super("");
      this.trial = trial;
      this.tab = tab;
      this.histories = histories;
    }

    @Override
    public scala.collection.Seq<Node> render(javax.servlet.http.HttpServletRequest request) {
      return page(request, request.getParameter(Picture.EXECUTOR));
    }

    /** What {@code WebUIPage} declares in Spark 4. */
    public scala.collection.immutable.Seq<Node> render(jakarta.servlet.http.HttpServletRequest request) {
      return page(request, request.getParameter(Picture.EXECUTOR));
    }

    /** A node is a sequence of itself. */
    private Unparsed page(Object request, String executor) {
      Unparsed content = new Unparsed(Picture.html(trial, histories.get(), executor, System.currentTimeMillis()));
      Function0<Object> body = () -> content;
      Method header = Stream.of(UIUtils.class.getMethods()).filter(method -> method.getName().equals(HEADER)).findAny().orElse(null);
      try {
        return header == null ? content
            : framed(header, request, "Hiroma: where the memory of the executors is", body, tab);
      } catch (ReflectiveOperationException | IllegalArgumentException otherVersion) {
        // Without Spark's frame then.
        return content;
      }
    }

    /** What follows the given arguments differs between versions, and each has a default, which Scala keeps in a method of its own. */
    private static Unparsed framed(Method header, Object... given) throws ReflectiveOperationException {
      Object[] arguments = Arrays.copyOf(given, header.getParameterCount());
      for (int number = given.length; number < arguments.length; number++) {
        arguments[number] = UIUtils.class.getMethod(HEADER + "$default$" + (number + 1)).invoke(null);
      }
      return new Unparsed(String.valueOf(header.invoke(null, arguments)));
    }
  }
}
